//! Systems whose programs cannot run here: the libraries and all tests are compiled and linked with zig, which brings
//! their C libraries.

use super::machine::Machine;
use super::provision::{self as need, Need};
use super::report::{Row, Test, Verdict};
use super::suite::{self, Source, Stress, Suite};
use super::Context;
use crate::tools;
use crate::upstream::PRIMARY;
use crate::util;
use anyhow::{ensure, Context as _, Result};
use object::{Architecture, BinaryFormat, Object, ObjectSymbol};
use std::path::{Path, PathBuf};
use std::time::Instant;

pub const NEEDS: &[&Need] = &[&need::PIP, &need::ZIG];

/// What zig compiles for, and what the result must look like.
pub struct System {
    name: &'static str,
    target: &'static str,
    options: &'static [&'static str],
    library: &'static str,
    format: BinaryFormat,
    architecture: Architecture,
}

pub const MACOS_ARM64: System = System {
    name: "macos/arm64",
    target: "aarch64-macos",
    options: &["-DCMAKE_SYSTEM_NAME=Darwin", "-DCMAKE_SYSTEM_PROCESSOR=arm64", "-DMI_NO_OPT_ARCH=ON"],
    library: "libmimalloc.dylib",
    format: BinaryFormat::MachO,
    architecture: Architecture::Aarch64,
};
const MACOS_X86_64: System = System {
    name: "macos/x86-64",
    target: "x86_64-macos",
    options: &["-DCMAKE_SYSTEM_NAME=Darwin", "-DCMAKE_SYSTEM_PROCESSOR=x86_64"],
    architecture: Architecture::X86_64,
    ..MACOS_ARM64
};
pub const FREEBSD: System = System {
    name: "freebsd/x86-64",
    target: "x86_64-freebsd",
    options: &["-DCMAKE_SYSTEM_NAME=FreeBSD", "-DCMAKE_SYSTEM_PROCESSOR=x86_64"],
    library: "libmimalloc.so",
    format: BinaryFormat::Elf,
    architecture: Architecture::X86_64,
};

pub fn macos_arm64(context: &Context, row: &mut Row) -> Result<()> {
    MACOS_ARM64.run(context, row)
}

pub fn macos_x86_64(context: &Context, row: &mut Row) -> Result<()> {
    MACOS_X86_64.run(context, row)
}

pub fn freebsd(context: &Context, row: &mut Row) -> Result<()> {
    FREEBSD.run(context, row)
}

impl System {
    fn run(&self, context: &Context, row: &mut Row) -> Result<()> {
        let start = Instant::now();
        row.built = Some(false);
        let folder = self.build(context)?;
        row.built = Some(true);
        row.build_seconds = start.elapsed().as_secs_f64();
        let tests = suite::test_names(true)?.into_iter().map(|name| format!("mimalloc-test-{name}"));
        for file in std::iter::once(self.library.to_string()).chain(tests) {
            let verdict = match self.check(&folder.join(&file)) {
                Ok(()) => Verdict::Passed(1),
                Err(error) => Verdict::Failed(format!("{error:#}")),
            };
            row.tests.push(Test { name: format!("{file} links"), seconds: 0.0, verdict });
        }
        Ok(())
    }

    fn build(&self, context: &Context) -> Result<PathBuf> {
        let cache = util::target_dir().join("zig-cache");
        let _global = context.shell.push_env("ZIG_GLOBAL_CACHE_DIR", &cache);
        let _local = context.shell.push_env("ZIG_LOCAL_CACHE_DIR", &cache);
        let tool = |option: &str, args: &str| Ok(format!("-D{option}={}", wrapper(args)?.display()));
        let tools = [
            tool("CMAKE_C_COMPILER", &format!("cc -target {} {NO_CHECKS}", self.target)),
            tool("CMAKE_CXX_COMPILER", &format!("c++ -target {} {NO_CHECKS}", self.target)),
            tool("CMAKE_AR", "ar"),
            tool("CMAKE_RANLIB", "ranlib"),
            // Only installing would use it.
            Ok("-DCMAKE_INSTALL_NAME_TOOL=true".to_string()),
        ];
        let tools = tools.into_iter().collect::<Result<Vec<String>>>()?;
        let options = ["-DCMAKE_BUILD_TYPE=Release", "-DMI_BUILD_OBJECT=OFF"].map(String::from);
        let own = self.options.iter().map(|option| option.to_string());
        let suite = Suite {
            name: self.name.to_string(),
            source: Source::Pin(PRIMARY),
            options: options.into_iter().chain(own).chain(tools).collect(),
            defines: vec!["MI_PPROF=1"],
            compiler: "Clang",
            machine: Machine::Native,
            environment: Vec::new(),
            stress: Stress::Small,
            quick: false,
            preload: false,
            left_out: Vec::new(),
        };
        Ok(suite.build(context, &[])?.folder)
    }

    /// A file for the system that was asked for. A library has the profiler in it.
    pub fn check(&self, path: &Path) -> Result<()> {
        let bytes = util::read(path)?;
        let file = object::File::parse(&*bytes).with_context(|| path.display().to_string())?;
        let (format, architecture) = (file.format(), file.architecture());
        let expected = (self.format, self.architecture) == (format, architecture);
        ensure!(expected, "{}: is {format:?} for {architecture:?}", path.display());
        if self.format == BinaryFormat::Elf {
            const LIBC: &[u8] = b"libc.so.7\0";
            let needs_libc = bytes.windows(LIBC.len()).any(|window| window == LIBC);
            ensure!(needs_libc, "{}: does not need FreeBSD's C library", path.display());
        }
        if path.ends_with(self.library) {
            let mut symbols = file.symbols().chain(file.dynamic_symbols()).filter(|symbol| symbol.is_definition());
            let has = symbols.any(|symbol| symbol.name().is_ok_and(|name| name.ends_with("mi_prof_start")));
            ensure!(has, "{}: does not define mi_prof_start", path.display());
        }
        Ok(())
    }
}

/// Without optimization zig looks for undefined behavior, with a library that these systems have not.
const NO_CHECKS: &str = "-fno-sanitize=undefined";

/// A program that is `zig ARGS`, for CMake.
fn wrapper(args: &str) -> Result<PathBuf> {
    let name: String = args.chars().map(|c| if c.is_alphanumeric() || c == '+' { c } else { '-' }).collect();
    let path = util::target_dir().join("test/zig").join(format!("zig-{name}"));
    let script = format!("#!/bin/sh\nexec '{}' {args} \"$@\"\n", tools::obtain(&tools::ZIG)?.display());
    if std::fs::read_to_string(&path).ok().as_deref() != Some(script.as_str()) {
        util::write_atomic(&path, script.as_bytes(), true)?;
    }
    Ok(path)
}
