//! Names for addresses: DWARF with inlined calls, else the symbol table, else the binary.

use crate::profile::Mapping;
use anyhow::{Context, Result};
use object::{Object, ObjectSection, ObjectSegment, ObjectSymbol, SymbolKind};
use std::borrow::Cow;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;

type Reader = gimli::EndianRcSlice<gimli::RunTimeEndian>;

/// What stands for code without a name.
#[derive(Clone, Copy)]
pub enum Unnamed {
    /// `[binary]`, as in pprof: one name for all of it.
    Binary,
    /// `binary+0xoffset`, a virtual address that disassemblers and `addr2line` know.
    Offset,
}

/// Symbolizes the addresses of one profile. Warns once about each file that it cannot use.
pub struct Symbolizer {
    unnamed: Unnamed,
    mappings: Vec<(Mapping, Option<Rc<Binary>>)>,
}

impl Symbolizer {
    /// `exe` replaces the file of the main binary, which is the first mapping.
    pub fn new(mappings: &[Mapping], exe: Option<&Path>, unnamed: Unnamed) -> Result<Symbolizer> {
        let mut files: HashMap<String, Option<Rc<Binary>>> = HashMap::new();
        let main = mappings.first().map(|mapping| mapping.path.clone());
        if let (Some(main), Some(exe)) = (&main, exe) {
            files.insert(main.clone(), Some(Rc::new(open_override(exe, &mappings[0])?)));
        }
        let open = |mapping: &Mapping| {
            let file = files.entry(mapping.path.clone()).or_insert_with(|| open_or_warn(mapping)).clone();
            (mapping.clone(), file)
        };
        Ok(Symbolizer { unnamed, mappings: mappings.iter().map(open).collect() })
    }

    /// The functions that are active at an address inside a call, innermost first; never empty.
    pub fn functions(&self, address: u64, mapping: Option<usize>) -> Vec<String> {
        let Some((mapping, file)) = mapping.and_then(|index| self.mappings.get(index)) else {
            return vec![format!("0x{address:x}")];
        };
        let offset = address.wrapping_sub(mapping.start).wrapping_add(mapping.offset);
        let address = file.as_ref().and_then(|file| file.virtual_address(offset));
        let functions = file.as_ref().zip(address).and_then(|(file, address)| file.functions(address));
        functions.unwrap_or_else(|| vec![self.unnamed.name(mapping, address.unwrap_or(offset))])
    }
}

impl Unnamed {
    fn name(self, mapping: &Mapping, offset: u64) -> String {
        let binary = Path::new(&mapping.path).file_name().map_or("anonymous".into(), |name| name.to_string_lossy());
        match self {
            Unnamed::Binary => format!("[{}]", binary.trim_matches(['[', ']'])),
            Unnamed::Offset => format!("{binary}+0x{offset:x}"),
        }
    }
}

fn open_override(exe: &Path, mapping: &Mapping) -> Result<Binary> {
    let unusable = || format!("--exe {}: cannot use it", exe.display());
    let mut binary = Binary::open(exe).with_context(unusable)?;
    if !binary.has_code {
        // Only the program that it was made from says what was loaded where.
        binary.segments =
            Binary::open(Path::new(&mapping.path)).context(mapping.path.clone()).with_context(unusable)?.segments;
    }
    if let Some(difference) = binary.difference(mapping) {
        eprintln!("warning: {}: {difference}; its names may be wrong", exe.display());
    }
    Ok(binary)
}

/// Wrong names are worse than none: a file that differs from the profiled one is not used.
fn open_or_warn(mapping: &Mapping) -> Option<Rc<Binary>> {
    if mapping.path.is_empty() || mapping.path.starts_with('[') || mapping.path.starts_with("//anon") {
        return None;
    }
    match Binary::open(Path::new(&mapping.path)) {
        Err(error) => eprintln!("warning: {}: {error:#}; its frames stay addresses", mapping.path),
        Ok(binary) => match binary.difference(mapping) {
            Some(difference) => eprintln!("warning: {}: {difference}; its frames stay addresses", mapping.path),
            None => return Some(Rc::new(binary)),
        },
    }
    None
}

/// A file range that is loaded at a virtual address.
struct Segment {
    offset: u64,
    size: u64,
    address: u64,
}

struct Symbol {
    address: u64,
    size: u64,
    name: String,
}

/// An executable or library, with the tables that name its functions.
struct Binary {
    build_id: String,
    /// A file of debug information alone has none.
    has_code: bool,
    segments: Vec<Segment>,
    /// By address.
    symbols: Vec<Symbol>,
    dwarf: Option<addr2line::Context<Reader>>,
}

impl Binary {
    fn open(path: &Path) -> Result<Binary> {
        let bytes = std::fs::read(path).context("cannot read it")?;
        let file = object::File::parse(&*bytes).context("not an executable")?;
        let build_id = file.build_id()?.map(hex).unwrap_or_default();
        let debug = separate_debug_file(&build_id).and_then(|path| std::fs::read(path).ok());
        let debug = debug.as_deref().and_then(|bytes| object::File::parse(bytes).ok());
        let debug = debug.as_ref().unwrap_or(&file);
        let has_code = file.section_by_name(".text").is_none_or(|text| text.file_range().is_some());
        Ok(Binary {
            has_code,
            segments: segments(&file),
            symbols: symbols(&file, debug),
            dwarf: dwarf(debug),
            build_id,
        })
    }

    /// How the file differs from the one that was profiled, if both are known.
    fn difference(&self, mapping: &Mapping) -> Option<String> {
        let known = !self.build_id.is_empty() && !mapping.build_id.is_empty();
        let differs = known && !self.build_id.eq_ignore_ascii_case(&mapping.build_id);
        differs.then(|| format!("build id {} is not the profile's {}", self.build_id, mapping.build_id))
    }

    fn virtual_address(&self, offset: u64) -> Option<u64> {
        let segment = self.segments.iter().find(|segment| offset.wrapping_sub(segment.offset) < segment.size)?;
        Some(offset - segment.offset + segment.address)
    }

    fn functions(&self, address: u64) -> Option<Vec<String>> {
        self.dwarf_functions(address).or_else(|| self.symbol(address).map(|name| vec![demangle(name)]))
    }

    fn dwarf_functions(&self, address: u64) -> Option<Vec<String>> {
        let mut frames = self.dwarf.as_ref()?.find_frames(address).skip_all_loads().ok()?;
        let mut names = Vec::new();
        while let Some(frame) = frames.next().ok()? {
            // A unit without a name for its function says less than the symbol table.
            names.push(demangle(&frame.function?.raw_name().ok()?));
        }
        (!names.is_empty()).then_some(names)
    }

    /// A symbol without a size (from assembly) reaches to the next one.
    fn symbol(&self, address: u64) -> Option<&str> {
        let next = self.symbols.partition_point(|symbol| symbol.address <= address);
        let symbol = &self.symbols[next.checked_sub(1)?];
        (symbol.size == 0 || address - symbol.address < symbol.size).then_some(symbol.name.as_str())
    }
}

/// Windows maps a module as a whole, each segment at its distance from the module's base.
fn segments(file: &object::File) -> Vec<Segment> {
    let is_image = file.format() == object::BinaryFormat::Pe;
    let segment = |segment: object::Segment| {
        let address = segment.address();
        let in_image = (address - file.relative_address_base(), segment.size());
        let (offset, size) = if is_image { in_image } else { segment.file_range() };
        Segment { offset, size, address }
    };
    file.segments().map(segment).collect()
}

/// The full table of the debug file or of the binary; a stripped binary has only its dynamic symbols.
fn symbols(file: &object::File, debug: &object::File) -> Vec<Symbol> {
    let mut symbols: Vec<Symbol> = debug.symbols().filter_map(function_symbol).collect();
    if symbols.is_empty() {
        symbols = file.dynamic_symbols().filter_map(function_symbol).collect();
    }
    symbols.sort_by_key(|symbol| (symbol.address, symbol.size));
    symbols
}

fn function_symbol(symbol: object::Symbol) -> Option<Symbol> {
    let is_code = symbol.kind() == SymbolKind::Text && symbol.is_definition();
    let name = symbol.name().ok().filter(|name| is_code && !name.is_empty())?;
    Some(Symbol { address: symbol.address(), size: symbol.size(), name: name.to_string() })
}

fn dwarf(file: &object::File) -> Option<addr2line::Context<Reader>> {
    file.section_by_name(".debug_info")?;
    let endian = if file.is_little_endian() { gimli::RunTimeEndian::Little } else { gimli::RunTimeEndian::Big };
    let load = |id: gimli::SectionId| -> Result<Reader> {
        let data = match file.section_by_name(id.name()) {
            Some(section) => section.uncompressed_data()?,
            None => Cow::Borrowed(&[][..]),
        };
        Ok(Reader::new(Rc::from(&*data), endian))
    };
    let dwarf = gimli::Dwarf::load(load).ok()?;
    addr2line::Context::from_dwarf(dwarf).ok()
}

/// Where distributions install the debug information that they strip.
fn separate_debug_file(build_id: &str) -> Option<PathBuf> {
    let (folder, name) = build_id.split_at_checked(2)?;
    let path = PathBuf::from(format!("/usr/lib/debug/.build-id/{folder}/{name}.debug"));
    path.is_file().then_some(path)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The source's name of a function, without parameters.
fn demangle(name: &str) -> String {
    if let Ok(rust) = rustc_demangle::try_demangle(name) {
        return format!("{rust:#}");
    }
    let options = cpp_demangle::DemangleOptions::new().no_params().no_return_type();
    cpp_demangle::Symbol::new(name)
        .ok()
        .and_then(|symbol| symbol.demangle_with_options(&options).ok())
        .unwrap_or_else(|| name.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    const SOURCE: &str = r#"
        #include <stdio.h>
        volatile int sink;
        static inline __attribute__((always_inline)) void inlined(int n) { sink = n * 3; }
        __attribute__((noinline)) void outer(int n) { inlined(n); sink++; }
        int main(void) { outer(1); return 0; }
    "#;

    /// A program built by the system's C compiler, in a folder that goes away with it.
    struct Built {
        folder: PathBuf,
        exe: PathBuf,
    }

    impl Built {
        fn new(name: &str, flags: &[&str]) -> Built {
            let folder = std::env::temp_dir().join(format!("xtask-symbols-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&folder).unwrap();
            let (source, exe) = (folder.join("program.c"), folder.join("program"));
            std::fs::write(&source, SOURCE).unwrap();
            let compiler = std::env::var("CC").unwrap_or("cc".into());
            let status =
                Command::new(compiler).args(flags).arg("-Wl,--build-id").arg("-o").arg(&exe).arg(&source).status();
            assert!(status.unwrap().success());
            Built { folder, exe }
        }

        fn binary(&self) -> Binary {
            Binary::open(&self.exe).unwrap()
        }

        /// The main binary mapped from its code segment on, as a loader would.
        fn mapping(&self, start: u64) -> Mapping {
            let binary = self.binary();
            let outer = binary.symbols.iter().find(|symbol| symbol.name == "outer").unwrap().address;
            let code =
                binary.segments.iter().find(|segment| outer.wrapping_sub(segment.address) < segment.size).unwrap();
            let path = self.exe.display().to_string();
            Mapping { start, limit: start + code.size, offset: code.offset, path, build_id: binary.build_id.clone() }
        }

        /// The run-time address of the first byte of `outer`, whose body is the inlined function.
        fn address_of_outer(&self, start: u64) -> u64 {
            let binary = self.binary();
            let symbol = binary.symbols.iter().find(|symbol| symbol.name == "outer").unwrap();
            let code = binary
                .segments
                .iter()
                .find(|segment| symbol.address.wrapping_sub(segment.address) < segment.size)
                .unwrap();
            start + symbol.address - code.address
        }
    }

    impl Drop for Built {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.folder);
        }
    }

    const START: u64 = 0x7f00_0000_1000;

    fn outer_of(built: &Built, mapping: &Mapping, exe: Option<&Path>) -> Vec<String> {
        let symbolizer = Symbolizer::new(std::slice::from_ref(mapping), exe, Unnamed::Offset).unwrap();
        symbolizer.functions(built.address_of_outer(START), Some(0))
    }

    #[test]
    fn inlined_calls_are_seen_in_a_position_independent_program() {
        let built = Built::new("dwarf", &["-g", "-O2", "-fPIE", "-pie"]);
        let symbolizer = Symbolizer::new(&[built.mapping(START)], None, Unnamed::Offset).unwrap();
        let from = built.address_of_outer(START);
        let stacks: Vec<_> = (from..from + 12).map(|address| symbolizer.functions(address, Some(0))).collect();
        assert!(stacks.contains(&vec!["inlined".to_string(), "outer".to_string()]), "{stacks:?}");
        assert!(stacks.iter().all(|stack| stack.last().unwrap() == "outer"), "{stacks:?}");
    }

    #[test]
    fn a_fixed_address_program_is_symbolized_too() {
        let built = Built::new("fixed", &["-g", "-O0", "-no-pie"]);
        assert_eq!(outer_of(&built, &built.mapping(START), None), ["outer"]);
    }

    #[test]
    fn without_debug_information_the_symbol_table_serves() {
        let built = Built::new("symtab", &["-O2", "-g0"]);
        assert_eq!(outer_of(&built, &built.mapping(START), None), ["outer"]);
    }

    #[test]
    fn a_stripped_program_has_its_exported_names_only() {
        let full = Built::new("full", &["-O2", "-g0"]);
        let stripped = Built::new("stripped", &["-O2", "-g0", "-s"]);
        let path = stripped.exe.display().to_string();
        // The linker gives them two build ids: without one in the profile, the stripped file is used.
        let mappings = [Mapping { path, build_id: String::new(), ..full.mapping(START) }];
        let address = full.address_of_outer(START);
        let name_as = |unnamed| Symbolizer::new(&mappings, None, unnamed).unwrap().functions(address, Some(0));
        let outer = full.binary().symbols.iter().find(|symbol| symbol.name == "outer").unwrap().address;
        assert_eq!(name_as(Unnamed::Offset), [format!("program+0x{outer:x}")]);
        assert_eq!(name_as(Unnamed::Binary), ["[program]"]);

        let dynamic = Built::new("dynamic", &["-O2", "-g0", "-s", "-rdynamic"]);
        assert!(dynamic.binary().symbols.iter().any(|symbol| symbol.name == "outer"));
    }

    #[test]
    fn a_file_with_another_build_id_is_not_used() {
        let built = Built::new("buildid", &["-g", "-O2"]);
        let mapping = Mapping { build_id: "00ff".into(), ..built.mapping(START) };
        assert!(outer_of(&built, &mapping, None)[0].starts_with("program+0x"));
        assert!(built.binary().difference(&mapping).unwrap().ends_with("is not the profile's 00ff"));
        assert_eq!(outer_of(&built, &mapping, Some(&built.exe)).last().unwrap(), "outer", "--exe is taken at its word");
    }

    #[test]
    fn a_moved_program_is_found_by_exe() {
        let built = Built::new("moved", &["-g", "-O2"]);
        let mapping = Mapping { path: "/nonexistent/program".into(), ..built.mapping(START) };
        assert_eq!(outer_of(&built, &mapping, Some(&built.exe)).last().unwrap(), "outer");
        assert!(outer_of(&built, &mapping, None)[0].starts_with("program+0x"));
        assert!(Symbolizer::new(&[mapping], Some(Path::new("/nonexistent")), Unnamed::Offset).is_err());
    }

    #[test]
    fn an_address_outside_all_mappings_stays_one() {
        let symbolizer = Symbolizer::new(&[], None, Unnamed::Offset).unwrap();
        assert_eq!(symbolizer.functions(0xabc, None), ["0xabc"]);
    }

    #[test]
    fn names_are_demangled_without_parameters() {
        assert_eq!(demangle("_ZN3foo3barEi"), "foo::bar");
        assert_eq!(demangle("_RNvC6_123foo3bar"), "123foo::bar");
        assert_eq!(demangle("_ZN4core3fmt5write17h0123456789abcdefE"), "core::fmt::write");
        assert_eq!(demangle("plain_c"), "plain_c");
    }
}
