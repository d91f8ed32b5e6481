//! Windows programs for the MSVC ABI, built with clang, wine's headers and import libraries and a small start-up file
//! of our own (`xtask/msvc/startup.c`) instead of Microsoft's C run-time library. CMake is not used: with it clang
//! would ask for that.

use super::machine::Machine;
use super::provision::{self as need, Need};
use super::report::Row;
use super::suite::{self, Stress, Suite};
use super::Context;
use crate::cmake;
use crate::materialize;
use crate::upstream::{Upstream, PRIMARY};
use crate::util;
use anyhow::{Context as _, Result};
use std::path::{Path, PathBuf};
use std::time::Instant;
use xshell::cmd;

pub const NEEDS: &[&Need] = &[&need::CLANG, &need::LLD, &need::WINE, &need::WINE_SDK];

const TARGET: &str = "--target=x86_64-pc-windows-msvc19.38";
const FLAGS: &[&str] = &[
    TARGET,
    "-nostdlibinc",
    "-fms-compatibility",
    "-fms-extensions",
    "-D_WIN32_WINNT=0x0602",
    "-D_UCRT",
    "-DMI_STATIC_LIB",
    // wine's headers have it for 32-bit programs only.
    "-DInterlockedExchange64=_InterlockedExchange64",
    "-Wall",
    "-Wno-unknown-pragmas",
    "-Wno-ignored-attributes",
];
const LIBRARIES: [&str; 3] = ["libkernel32.a", "libadvapi32.a", "libucrtbase.a"];

pub fn release_on(context: &Context, row: &mut Row) -> Result<()> {
    run(context, row, &["-O2", "-DNDEBUG", "-DMI_PPROF=1"], true)
}

pub fn debug_on(context: &Context, row: &mut Row) -> Result<()> {
    run(context, row, &["-O1", "-DMI_DEBUG=3", "-DMI_PPROF=1"], true)
}

pub fn release_off(context: &Context, row: &mut Row) -> Result<()> {
    run(context, row, &["-O2", "-DNDEBUG", "-DMI_PPROF=0"], false)
}

fn run(context: &Context, row: &mut Row, flags: &[&str], profiler: bool) -> Result<()> {
    let start = Instant::now();
    row.built = Some(false);
    let folder = util::target_dir().join("test").join(row.target).join(row.config);
    let tree = materialize::tree_folder(&Upstream::Pinned(PRIMARY))?;
    build(context, &tree, &folder, flags, &suite::test_names(profiler)?)?;
    row.built = Some(true);
    row.build_seconds = start.elapsed().as_secs_f64();
    context.say(&format!("built in {:.0} s", row.build_seconds));
    tests(profiler).run_tests(context, &folder, row)
}

/// The tests of a build, run by wine.
pub fn tests(profiler: bool) -> Suite {
    Suite {
        name: String::new(),
        source: suite::Source::Pin(PRIMARY),
        options: if profiler { Vec::new() } else { vec!["-DMI_PPROF=OFF".to_string()] },
        defines: Vec::new(),
        compiler: "Clang",
        machine: Machine::Wine,
        environment: Vec::new(),
        stress: Stress::Small,
        quick: true,
        preload: false,
        left_out: vec![(suite::NAMES, "a program for the MSVC ABI has no symbols; the test compares addresses")],
    }
}

pub fn build(context: &Context, tree: &Path, folder: &Path, flags: &[&str], tests: &[String]) -> Result<()> {
    let compiler = Compiler::find(context, tree, folder, flags)?;
    let library = compiler.object(&tree.join("src/static.c"))?;
    let startup = compiler.object(&util::repo_root().join("xtask/msvc/startup.c"))?;
    for name in tests {
        let test = compiler.object(&tree.join(format!("test/test-{name}.c")))?;
        compiler.link(name, &[&test, &library, &startup])?;
    }
    Ok(())
}

struct Compiler<'a> {
    context: &'a Context,
    folder: PathBuf,
    flags: Vec<String>,
    linker: PathBuf,
    libraries: Vec<PathBuf>,
}

impl<'a> Compiler<'a> {
    fn find(context: &'a Context, tree: &Path, folder: &Path, flags: &[&str]) -> Result<Compiler<'a>> {
        std::fs::create_dir_all(folder)?;
        let shell = &context.shell;
        let resources = cmake::run(cmd!(shell, "clang -print-resource-dir"))?;
        let wine = need::wine_headers().context("there are no headers of wine")?;
        let system = [Path::new(resources.trim()).join("include"), wine.join("msvcrt"), wine.join("windows")];
        let own = [tree.join("include"), tree.join("src")];
        let flags = FLAGS.iter().chain(flags).map(|flag| flag.to_string());
        let system = system.iter().flat_map(|path| ["-isystem".to_string(), path.display().to_string()]);
        let own = own.iter().map(|path| format!("-I{}", path.display()));
        let import = need::wine_libraries().context("there are no import libraries of wine")?;
        Ok(Compiler {
            context,
            folder: folder.to_path_buf(),
            flags: flags.chain(system).chain(own).collect(),
            linker: need::lld_link().context("there is no lld-link")?,
            libraries: LIBRARIES.iter().map(|name| import.join(name)).collect(),
        })
    }

    fn object(&self, source: &Path) -> Result<PathBuf> {
        let name = source.file_stem().context("a source has a name")?.to_string_lossy();
        let object = self.folder.join(format!("{name}.obj"));
        let (shell, flags) = (&self.context.shell, &self.flags);
        cmake::run(cmd!(shell, "clang {flags...} -c {source} -o {object}"))?;
        Ok(object)
    }

    fn link(&self, name: &str, objects: &[&Path]) -> Result<()> {
        let output = format!("/out:{}", self.folder.join(format!("mimalloc-test-{name}.exe")).display());
        let (shell, linker, libraries) = (&self.context.shell, &self.linker, &self.libraries);
        let options = ["/nologo", "/entry:mainCRTStartup", "/subsystem:console", &output];
        cmake::run(cmd!(shell, "{linker} {options...} {objects...} {libraries...}")).map(drop)
    }
}
