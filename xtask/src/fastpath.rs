//! The fast-path proof: with the profiler built in, the allocator's fast paths have upstream's instructions.

use crate::cmake::{run, Build};
use crate::materialize;
use crate::offproof::{self, Plant};
use crate::upstream::{Upstream, PRIMARY};
use crate::{text, util};
use anyhow::{ensure, Context, Result};
use object::{Object, ObjectSection, ObjectSymbol};
use std::ops::Range;
use std::path::Path;
use xshell::{cmd, Shell};

const FUNCTIONS: [&str; 13] = [
    "mi_malloc",
    "mi_malloc_small",
    "mi_zalloc",
    "mi_zalloc_small",
    "mi_calloc",
    "mi_mallocn",
    "mi_heap_malloc",
    "mi_heap_malloc_small",
    "mi_heap_zalloc",
    "mi_heap_calloc",
    "mi_free",
    "mi_free_size",
    "mi_free_aligned",
];

const OBJECT: &str = "src/alloc.c.o";

const PLANT: Plant = Plant {
    file: "src/alloc.c",
    object: OBJECT,
    line_with: "extern inline void* _mi_page_malloc_zero(",
    insert: "  #if MI_PPROF\n  static volatile int mi_planted; mi_planted = 1;\n  #endif",
};

/// Compares every function; returns their names, with the number of instructions.
pub fn prove(shell: &Shell, upstream: &Upstream) -> Result<Vec<(&'static str, usize)>> {
    let pristine = offproof::pristine_build(shell, upstream)?.static_object(OBJECT)?;
    let on = on_build(shell, upstream)?.static_object(OBJECT)?;
    let differing = differing(shell, &pristine, &on)?;
    ensure!(differing.is_empty(), "other instructions than upstream's in:{}", differing.concat());
    FUNCTIONS.iter().map(|function| Ok((*function, instructions(shell, &on, function)?.len()))).collect()
}

pub fn on_build(shell: &Shell, upstream: &Upstream) -> Result<Build> {
    let tree = materialize::tree_folder(upstream)?;
    offproof::build(shell, &tree, &format!("fast-path/{}", upstream.label()), "-DMI_PPROF=ON")
}

/// The proof must see one more store in the path that all allocations share.
pub fn planted(shell: &Shell) -> Result<()> {
    let pristine = offproof::pristine_build(shell, &Upstream::Pinned(PRIMARY))?.static_object(OBJECT)?;
    let planted = offproof::planted_object(shell, PLANT, "on", "-DMI_PPROF=ON")?;
    let differing = differing(shell, &pristine, &planted)?;
    ensure!(differing.iter().any(|text| text.starts_with("\nmi_malloc:")), "a store in mi_malloc was not noticed");
    Ok(())
}

fn differing(shell: &Shell, pristine: &Path, ours: &Path) -> Result<Vec<String>> {
    let mut differing = Vec::new();
    for function in FUNCTIONS {
        let (pristine, ours) = (instructions(shell, pristine, function)?, instructions(shell, ours, function)?);
        if pristine != ours {
            differing.push(format!("\n{function}:\n{}", text::side_by_side(&pristine, &ours)));
        }
    }
    Ok(differing)
}

/// A function's instructions without addresses; jumps name the instruction they go to, calls their symbol.
fn instructions(shell: &Shell, object: &Path, function: &str) -> Result<Vec<String>> {
    let (section, range) = location(object, function)?;
    let (start, stop) = (range.start.to_string(), range.end.to_string());
    let range = ["--start-address", &start, "--stop-address", &stop];
    let listing = run(cmd!(shell, "objdump -d -r --no-show-raw-insn -j {section} {range...} {object}"))?;
    let instructions = normalize(&listing);
    ensure!(!instructions.is_empty(), "{}: objdump found no {function}", object.display());
    Ok(instructions)
}

/// By the symbol table: objdump knows one name per address, and `mi_malloc` is also `malloc`.
fn location(object: &Path, function: &str) -> Result<(String, Range<u64>)> {
    let bytes = util::read(object)?;
    let file = object::File::parse(&*bytes)?;
    let symbol = file.symbol_by_name(function).with_context(|| format!("{}: no {function}", object.display()))?;
    let section = symbol.section_index().with_context(|| format!("{}: {function} is elsewhere", object.display()))?;
    let section = file.section_by_index(section)?.name()?.to_string();
    Ok((section, symbol.address()..symbol.address() + symbol.size()))
}

struct Instruction {
    address: u64,
    text: String,
    /// What the linker is to fill in.
    relocations: String,
}

fn normalize(listing: &str) -> Vec<String> {
    let mut parsed = parse(listing);
    parsed.retain(|instruction| !instruction.text.contains("nop") && instruction.text != "xchg   %ax,%ax");
    let starts: Vec<u64> = parsed.iter().map(|instruction| instruction.address).collect();
    parsed.iter().map(|each| with_symbolic_target(&each.text, &starts) + &each.relocations).collect()
}

fn parse(listing: &str) -> Vec<Instruction> {
    let mut parsed: Vec<Instruction> = Vec::new();
    for line in listing.lines() {
        let Some((address, text)) = line.trim().split_once(':') else { continue };
        let Ok(address) = u64::from_str_radix(address, 16) else { continue };
        let text = text.split('#').next().unwrap_or_default().trim();
        match parsed.last_mut() {
            Some(last) if text.starts_with("R_") => last.relocations += &format!(" [{}]", without_addend(text)),
            _ => parsed.push(Instruction { address, text: text.to_string(), relocations: String::new() }),
        }
    }
    parsed
}

/// `R_X86_64_PLT32 _mi_malloc_generic-0x4` without the distance.
fn without_addend(relocation: &str) -> String {
    let text = relocation.split_whitespace().collect::<Vec<_>>().join(" ");
    let end = text.rfind("-0x").or_else(|| text.rfind("+0x")).unwrap_or(text.len());
    text[..end].to_string()
}

/// `jmp 41 <mi_malloc+0x41>` goes to an instruction of the function, `call 1230 <f>` to another symbol.
fn with_symbolic_target(text: &str, starts: &[u64]) -> String {
    let Some((before, symbol)) = text.split_once(" <") else { return text.to_string() };
    let (operation, address) = before.rsplit_once(char::is_whitespace).unwrap_or((before, ""));
    let Ok(address) = u64::from_str_radix(address, 16) else { return text.to_string() };
    let inside = starts.first().is_some_and(|first| *first <= address) && starts.last() >= Some(&address);
    match inside {
        true => format!("{operation} @{}", starts.partition_point(|start| *start < address)),
        false => format!("{operation} <{}", symbol.split_once("+0x").map_or(symbol, |(name, _)| name)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LISTING: &str = "
0000000000000010 <f>:
  10:\tmov    0x0(%rip),%rax        # 17 <f+0x7>
\t\t\t13: R_X86_64_GOTTPOFF\t_mi_heap_default-0x4
  17:\tje     20 <f+0x10>
  19:\tnopl   0x0(%rax)
  20:\tcall   25 <f+0x15>
\t\t\t21: R_X86_64_PLT32\tg-0x4
  25:\tjmp    90 <h+0x10>
";

    #[test]
    fn addresses_go_and_targets_stay() {
        let expected = [
            "mov    0x0(%rip),%rax [R_X86_64_GOTTPOFF _mi_heap_default]",
            "je     @2",
            "call   @3 [R_X86_64_PLT32 g]",
            "jmp    <h",
        ];
        let normal: Vec<String> = normalize(LISTING);
        assert_eq!(normal.len(), expected.len());
        for (line, expected) in normal.iter().zip(expected) {
            let squeezed = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
            assert_eq!(squeezed(line), squeezed(expected));
        }
    }
}
