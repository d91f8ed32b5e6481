//! The OFF proof: with `MI_PPROF=0` nothing is left of the profiler. Dropping the guarded regions of a tree gives
//! upstream's bytes back, and the objects of a Release build have upstream's code.

use crate::cmake::Build;
use crate::materialize::{self, drop_all_regions};
use crate::tree::Tree;
use crate::upstream::{Upstream, PRIMARY};
use crate::util;
use anyhow::{ensure, Context, Result};
use object::{Object, ObjectSection, ObjectSymbol, RelocationTarget};
use std::path::Path;
use xshell::Shell;

const RELEASE: [&str; 2] = ["-DCMAKE_BUILD_TYPE=Release", "-DMI_BUILD_TESTS=OFF"];

/// What the source of one pin has in common with upstream's.
pub fn source(pin: &'static str) -> Result<()> {
    let upstream = Upstream::Pinned(pin);
    let differing = differing_files(&upstream.tree()?, materialize::compose(&upstream)?)?;
    ensure!(
        differing.is_empty(),
        "mimalloc {pin}: not upstream's once the regions are dropped: {}",
        differing.join(", ")
    );
    Ok(())
}

/// The source proof must see a line that is not guarded.
pub fn source_planted() -> Result<()> {
    let upstream = Upstream::Pinned(PRIMARY);
    let differing = differing_files(&upstream.tree()?, planted(OFF_PLANT)?)?;
    ensure!(differing == [OFF_PLANT.file], "an unguarded line in {} was not noticed", OFF_PLANT.file);
    Ok(())
}

/// Compares the code of every object of a Release build; returns how many.
pub fn code(shell: &Shell, pin: &'static str) -> Result<usize> {
    let upstream = Upstream::Pinned(pin);
    let pristine = pristine_build(shell, pin)?;
    let tree = materialize::tree_folder(&upstream)?;
    let off = build(shell, &tree, &format!("off-proof/{pin}"), "-DMI_PPROF=OFF")?;
    let objects = pristine.static_objects()?;
    ensure!(objects.len() > 10, "only {} objects were built", objects.len());
    ensure!(objects.len() == off.static_objects()?.len(), "mimalloc {pin}: not the same objects");
    for (name, path) in &objects {
        let same = code_of(path)? == code_of(&off.static_object(name)?)?;
        ensure!(same, "mimalloc {pin}: {name} has other code with MI_PPROF=0 than upstream's");
    }
    Ok(objects.len())
}

/// The code proof must see a statement that is not guarded.
pub fn code_planted(shell: &Shell) -> Result<()> {
    let object = planted_object(shell, OFF_PLANT, "off", "-DMI_PPROF=OFF")?;
    let pristine = pristine_build(shell, PRIMARY)?.static_object(OFF_PLANT.object)?;
    ensure!(code_of(&object)? != code_of(&pristine)?, "an unguarded statement in {} was not noticed", OFF_PLANT.file);
    Ok(())
}

/// Upstream's own Release objects.
pub fn pristine_build(shell: &Shell, pin: &'static str) -> Result<Build> {
    let folder = Upstream::Pinned(pin).folder()?;
    build(shell, &folder, &format!("pristine/{pin}"), "-DMI_BUILD_SHARED=OFF")
}

pub fn build(shell: &Shell, source: &Path, name: &str, option: &str) -> Result<Build> {
    let build = Build::configure(shell, source, name, &[&RELEASE[..], &[option]].concat())?;
    build.build(shell, &["mimalloc-static"])?;
    Ok(build)
}

/// A fault to be planted in a tree.
#[derive(Clone, Copy)]
pub struct Plant {
    pub file: &'static str,
    /// The object that the file ends up in.
    pub object: &'static str,
    pub line_with: &'static str,
    pub insert: &'static str,
}

const OFF_PLANT: Plant = Plant {
    file: "src/free.c",
    object: "src/alloc.c.o",
    line_with: "void mi_free(void* p) mi_attr_noexcept",
    insert: "  static volatile int mi_planted; mi_planted = 1;",
};

/// The object that the fault is in, built with `option`.
pub fn planted_object(shell: &Shell, plant: Plant, name: &str, option: &str) -> Result<std::path::PathBuf> {
    let folder = util::target_dir().join("test/planted").join(name).join("tree");
    planted(plant)?.write(&folder)?;
    build(shell, &folder, &format!("planted/{name}/build"), option)?.static_object(plant.object)
}

/// The primary tree with the fault after the first line that is like `line_with` and opens a body.
fn planted(plant: Plant) -> Result<Tree> {
    let mut tree = materialize::compose(&Upstream::Pinned(PRIMARY))?;
    let text = tree.text(plant.file).with_context(|| format!("no {}", plant.file))?;
    let at = text.find(plant.line_with).with_context(|| format!("{}: no '{}'", plant.file, plant.line_with))?;
    let body = at + text[at..].find("{\n").context("no body")? + 2;
    tree.insert(plant.file, format!("{}{}\n{}", &text[..body], plant.insert, &text[body..]));
    Ok(tree)
}

fn differing_files(upstream: &Tree, mut tree: Tree) -> Result<Vec<String>> {
    ensure!(drop_all_regions(&mut tree)?, "the tree has no regions to drop");
    let differs = upstream.files.iter().filter(|(path, file)| tree.files.get(*path) != Some(*file));
    Ok(differs.map(|(path, _)| path.clone()).collect())
}

/// A code section of an object.
#[derive(PartialEq)]
struct Section {
    name: String,
    bytes: Vec<u8>,
    /// Where the linker is to fill in what.
    relocations: Vec<String>,
}

fn code_of(object: &Path) -> Result<Vec<Section>> {
    let bytes = util::read(object)?;
    let file = object::File::parse(&*bytes).with_context(|| object.display().to_string())?;
    let is_code = |section: &object::Section| section.name().is_ok_and(|name| name.starts_with(".text"));
    let sections: Vec<Section> =
        file.sections().filter(is_code).map(|section| read_section(&file, &section)).collect::<Result<_>>()?;
    ensure!(sections.iter().any(|section| !section.bytes.is_empty()), "{}: no code in it", object.display());
    Ok(sections)
}

fn read_section(file: &object::File, section: &object::Section) -> Result<Section> {
    let target = |target| match target {
        RelocationTarget::Symbol(index) => symbol_name(file, index),
        other => format!("{other:?}"),
    };
    let relocations = section.relocations().map(|(at, to)| format!("{at:x} {} {}", target(to.target()), to.addend()));
    Ok(Section {
        name: section.name()?.to_string(),
        bytes: section.data()?.to_vec(),
        relocations: relocations.collect(),
    })
}

fn symbol_name(file: &object::File, index: object::SymbolIndex) -> String {
    let symbol = file.symbol_by_index(index);
    let name = symbol.as_ref().ok().and_then(|symbol| symbol.name().ok()).unwrap_or("?");
    let section =
        || file.section_by_index(symbol.as_ref().ok()?.section_index()?).ok()?.name().ok().map(str::to_string);
    if name.is_empty() {
        section().unwrap_or_default()
    } else {
        name.to_string()
    }
}
