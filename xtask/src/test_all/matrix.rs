//! The matrix: every target with its configurations.

use super::machine::Machine;
use super::provision::{self as need, Need};
use super::report::Row;
use super::suite::{Source, Stress, Suite};
use super::{cross, msvc, programs, steps, upstream, Context};
use crate::platform;
use crate::upstream::{pins, PRIMARY};
use crate::util;
use anyhow::Result;

/// One row of the table.
pub struct Cell {
    pub target: &'static str,
    pub config: &'static str,
    pub needs: Vec<&'static Need>,
    /// Build folders that other cells use too.
    pub locks: &'static [&'static str],
    /// About how many seconds it takes: the longest begin.
    pub weight: u32,
    pub work: Work,
}

pub enum Work {
    Suite(Suite),
    /// Steps of `cargo xtask test`, by how their names begin.
    Steps(&'static [&'static str]),
    Function(fn(&Context, &mut Row) -> Result<()>),
}

/// How a target is compiled and where it runs.
struct Platform {
    target: &'static str,
    needs: &'static [&'static Need],
    options: &'static [&'static str],
    /// What mimalloc must be told on that system.
    system: &'static [&'static str],
    compiler: &'static str,
    machine: Machine,
    preload: bool,
}

const RELEASE: &str = "-DCMAKE_BUILD_TYPE=Release";
const DEBUG: &str = "-DCMAKE_BUILD_TYPE=Debug";
const FULL: &str = "-DMI_DEBUG_FULL=ON";
const OFF: &str = "-DMI_PPROF=OFF";
const NO_OBJECT: &str = "-DMI_BUILD_OBJECT=OFF";

const LINUX_GCC: Platform = Platform {
    target: "linux-gcc",
    needs: &[&need::GCC],
    options: &[],
    system: &[],
    compiler: "GNU",
    machine: Machine::Native,
    preload: true,
};
const GCC_OPTIONS: &[&str] = &["-DCMAKE_C_COMPILER=gcc", "-DCMAKE_CXX_COMPILER=g++"];
const CLANG_OPTIONS: &[&str] = &["-DCMAKE_C_COMPILER=clang", "-DCMAKE_CXX_COMPILER=clang++"];
const LINUX_CLANG: Platform =
    Platform { target: "linux-clang", needs: &[&need::CLANG], options: CLANG_OPTIONS, compiler: "Clang", ..LINUX_GCC };
const MUSL: Platform = Platform {
    target: "linux-musl",
    needs: &[&need::GCC, &need::MUSL],
    // A library that is not needed would be glibc's. And the wrapper forgets what a compiler made for musl does: without
    // the table of unwind information there are no stacks.
    options: &[
        "-DCMAKE_C_COMPILER=musl-gcc",
        "-DCMAKE_CXX_COMPILER=g++",
        "-DCMAKE_EXE_LINKER_FLAGS=-Wl,--as-needed,--eh-frame-hdr",
        "-DCMAKE_SHARED_LINKER_FLAGS=-Wl,--as-needed,--eh-frame-hdr",
    ],
    system: platform::MUSL,
    ..LINUX_GCC
};
const I686: Platform = Platform {
    target: "linux-i686",
    needs: &[&need::GCC, &need::MULTILIB],
    options: &[
        "-DCMAKE_SYSTEM_NAME=Linux",
        "-DCMAKE_SYSTEM_PROCESSOR=i686",
        "-DCMAKE_C_COMPILER=gcc",
        "-DCMAKE_CXX_COMPILER=g++",
        "-DCMAKE_C_FLAGS=-m32 -idirafter /usr/include/x86_64-linux-gnu",
        "-DCMAKE_CXX_FLAGS=-m32 -idirafter /usr/include/x86_64-linux-gnu",
    ],
    ..LINUX_GCC
};
const ARM64: Platform = Platform {
    target: "linux-arm64",
    needs: &[&need::ARM64, &need::QEMU],
    options: &[
        "-DCMAKE_SYSTEM_NAME=Linux",
        "-DCMAKE_SYSTEM_PROCESSOR=aarch64",
        "-DCMAKE_C_COMPILER=aarch64-linux-gnu-gcc",
        "-DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++",
    ],
    machine: Machine::Qemu("qemu-aarch64", "/usr/aarch64-linux-gnu"),
    ..LINUX_GCC
};
const RISCV64: Platform = Platform {
    target: "linux-riscv64",
    needs: &[&need::RISCV64, &need::QEMU],
    options: &[
        "-DCMAKE_SYSTEM_NAME=Linux",
        "-DCMAKE_SYSTEM_PROCESSOR=riscv64",
        "-DCMAKE_C_COMPILER=riscv64-linux-gnu-gcc",
        "-DCMAKE_CXX_COMPILER=riscv64-linux-gnu-g++",
    ],
    machine: Machine::Qemu("qemu-riscv64", "/usr/riscv64-linux-gnu"),
    ..LINUX_GCC
};
const MINGW: Platform = Platform {
    target: "windows-mingw",
    needs: &[&need::MINGW, &need::WINE],
    // Without fiber-local storage upstream does not see a thread end: each leaks its heap, and Debug aborts at start.
    options: &[
        "-DCMAKE_SYSTEM_NAME=Windows",
        "-DCMAKE_SYSTEM_PROCESSOR=AMD64",
        "-DCMAKE_C_COMPILER=x86_64-w64-mingw32-gcc-posix",
        "-DCMAKE_CXX_COMPILER=x86_64-w64-mingw32-g++-posix",
        "-DCMAKE_RC_COMPILER=x86_64-w64-mingw32-windres",
    ],
    system: platform::MINGW,
    machine: Machine::Wine,
    preload: false,
    ..LINUX_GCC
};
const CLANG_ONLY: Platform = Platform { needs: need::SANITIZING, preload: false, ..LINUX_CLANG };
const ASAN: Platform = Platform { target: "asan", ..CLANG_ONLY };
const UBSAN: Platform = Platform { target: "ubsan", ..CLANG_ONLY };
const TSAN: Platform = Platform { target: "tsan", ..CLANG_ONLY };
const GCC_TREE: Platform = Platform { options: GCC_OPTIONS, ..LINUX_GCC };
const VALGRIND: Platform = Platform {
    target: "valgrind",
    needs: &[&need::GCC, &need::VALGRIND],
    machine: Machine::Valgrind,
    preload: false,
    ..GCC_TREE
};
const SECURE: Platform = Platform { target: "secure", ..GCC_TREE };
const GUARDED: Platform = Platform { target: "guarded", ..GCC_TREE };
const CXX: Platform = Platform { target: "cxx", ..GCC_TREE };
const VERSIONS: Platform = Platform { target: "upstream-versions", ..GCC_TREE };

impl Platform {
    fn suite(&self, config: &'static str, options: &[&'static str], defines: &[&'static str]) -> Suite {
        Suite {
            name: format!("{}/{config}", self.target),
            source: Source::Pin(PRIMARY),
            options: [self.options, self.system, options]
                .concat()
                .into_iter()
                .map(|option| option.to_string())
                .collect(),
            defines: defines.to_vec(),
            compiler: self.compiler,
            machine: self.machine,
            environment: Vec::new(),
            stress: Stress::Small,
            quick: self.machine != Machine::Native,
            preload: self.preload,
            left_out: Vec::new(),
        }
    }

    fn cell(&self, config: &'static str, weight: u32, suite: Suite) -> Cell {
        let (target, needs) = (self.target, self.needs.to_vec());
        Cell { target, config, needs, locks: &[], weight, work: Work::Suite(suite) }
    }

    fn release(&self, weight: u32) -> Cell {
        self.cell("release-on", weight, self.suite("release-on", &[RELEASE], &["MI_PPROF=1", "MI_BUILD_RELEASE"]))
    }

    fn release_off(&self, weight: u32) -> Cell {
        let suite = self.suite("release-off", &[RELEASE, OFF], &["MI_PPROF=0", "MI_BUILD_RELEASE"]);
        self.cell("release-off", weight, suite)
    }

    fn debug(&self, weight: u32) -> Cell {
        self.cell("debug-on", weight, self.suite("debug-on", &[DEBUG, FULL], &["MI_PPROF=1", "MI_DEBUG=3"]))
    }

    fn debug_off(&self, weight: u32) -> Cell {
        self.cell("debug-off", weight, self.suite("debug-off", &[DEBUG, FULL, OFF], &["MI_PPROF=0", "MI_DEBUG=3"]))
    }

    /// The tests are linked with the shared library.
    fn shared(&self, weight: u32) -> Cell {
        let options = [RELEASE, "-DMI_BUILD_STATIC=OFF", NO_OBJECT];
        self.cell("shared-on", weight, self.suite("shared-on", &options, &["MI_PPROF=1"]))
    }

    fn full(&self) -> Vec<Cell> {
        vec![self.debug(160), self.release(100), self.shared(70), self.debug_off(40), self.release_off(35)]
    }
}

impl Cell {
    fn with(mut self, change: impl FnOnce(&mut Suite)) -> Cell {
        if let Work::Suite(suite) = &mut self.work {
            change(suite);
        }
        self
    }

    fn quick(self) -> Cell {
        self.with(|suite| suite.quick = true)
    }

    pub fn label(&self) -> String {
        format!("{}/{}", self.target, self.config)
    }
}

/// All cells, in the order of the table.
pub fn cells() -> Vec<Cell> {
    let mut cells = linux_gcc();
    cells.extend(LINUX_CLANG.full());
    cells.extend([MUSL.release(90), MUSL.debug(120).quick(), I686.release(80), I686.debug(120).quick()]);
    cells.extend([ARM64.release(300), RISCV64.release(300)]);
    cells.extend([MINGW.release(150), MINGW.debug(200), MINGW.release_off(60)]);
    cells.push(function("windows-msvc", "release-on", msvc::NEEDS, 100, msvc::release_on));
    cells.push(function("windows-msvc", "debug-on", msvc::NEEDS, 120, msvc::debug_on));
    cells.push(function("windows-msvc", "release-off", msvc::NEEDS, 50, msvc::release_off));
    cells.push(function("macos", "arm64", cross::NEEDS, 180, cross::macos_arm64));
    cells.push(function("macos", "x86-64", cross::NEEDS, 180, cross::macos_x86_64));
    cells.push(function("freebsd", "x86-64", cross::NEEDS, 200, cross::freebsd));
    cells.extend(checkers());
    cells.extend(variants());
    cells.extend(upstream_versions());
    cells.extend(steps::cells());
    cells.extend(programs::cells());
    cells.extend(upstream::cells());
    cells
}

fn function(
    target: &'static str,
    config: &'static str,
    needs: &[&'static Need],
    weight: u32,
    run: fn(&Context, &mut Row) -> Result<()>,
) -> Cell {
    Cell { target, config, needs: needs.to_vec(), locks: &[], weight, work: Work::Function(run) }
}

/// The builds are those of `cargo xtask test`, which the consumers use, too.
fn linux_gcc() -> Vec<Cell> {
    let project = |mut cell: Cell| {
        let config = cell.config;
        cell.locks = steps::BUILDS.iter().find(|locks| locks.contains(&config)).copied().unwrap_or(&[]);
        if cell.config == "shared-on" {
            return cell.with(|suite| suite.options.extend(GCC_OPTIONS.iter().map(|option| option.to_string())));
        }
        cell.with(|suite| {
            suite.name = config.to_string();
            suite.source = Source::Project;
            suite.stress = if config == "release-on" { Stress::Full } else { Stress::Small };
            if !suite.has_option(OFF) {
                suite.options.push("-DMI_PPROF=ON".to_string());
            }
        })
    };
    LINUX_GCC.full().into_iter().map(project).collect()
}

fn checkers() -> Vec<Cell> {
    let asan = ASAN.suite("debug-on", &[DEBUG, NO_OBJECT, "-DMI_TRACK_ASAN=ON"], &["MI_PPROF=1", "MI_TRACK_ASAN=1"]);
    let ubsan = UBSAN.suite("debug-on", &[DEBUG, NO_OBJECT, "-DMI_DEBUG_UBSAN=ON"], &["MI_PPROF=1", "MI_UBSAN=1"]);
    let tsan = TSAN.suite("debug-on", &[DEBUG, NO_OBJECT, "-DMI_DEBUG_TSAN=ON"], &["MI_PPROF=1", "MI_TSAN=1"]);
    // The suppressions name functions that are inlined: only debug information tells valgrind of those.
    let valgrind_options = [RELEASE, NO_OBJECT, "-DMI_TRACK_VALGRIND=ON", "-DCMAKE_C_FLAGS=-g"];
    let valgrind = VALGRIND.suite("release-on", &valgrind_options, &["MI_PPROF=1", "MI_TRACK_VALGRIND=1"]);
    let cells = [
        ASAN.cell("debug-on", 200, asan),
        UBSAN.cell("debug-on", 100, ubsan),
        TSAN.cell("debug-on", 300, tsan).with(|suite| {
            let file = util::repo_root().join("xtask/tsan.supp");
            suite.environment.push(("TSAN_OPTIONS", format!("suppressions={}", file.display())));
        }),
        VALGRIND.cell("release-on", 400, valgrind).with(|suite| {
            suite.stress = Stress::Tiny;
            suite
                .left_out
                .push(("profile-threads", "it measures time and memory, and valgrind runs one thread at a time"));
            suite.left_out.push(("profile-fork", "valgrind calls lost what the parent's threads hold in a child"));
            for test in ["profile-stack-leaf-c-all-static", "profile-stack-leaf-cpp-all-static"] {
                suite.left_out.push((test, "valgrind does not know the C library's functions in a static program"));
            }
        }),
    ];
    cells.into_iter().map(Cell::quick).collect()
}

fn variants() -> Vec<Cell> {
    let secure = SECURE.suite("release-on", &[RELEASE, "-DMI_SECURE=ON"], &["MI_PPROF=1", "MI_SECURE=4"]);
    let guarded = GUARDED.suite("release-on", &[RELEASE, "-DMI_GUARDED=ON"], &["MI_PPROF=1", "MI_GUARDED=1"]);
    let cxx = CXX.suite("release-on", &[RELEASE, "-DMI_USE_CXX=ON"], &["MI_PPROF=1"]);
    let cxx_debug = CXX.suite("debug-on", &[DEBUG, FULL, "-DMI_USE_CXX=ON"], &["MI_PPROF=1", "MI_DEBUG=3"]);
    vec![
        SECURE.cell("release-on", 90, secure),
        GUARDED.cell("release-on", 90, guarded),
        CXX.cell("release-on", 70, cxx),
        CXX.cell("debug-on", 90, cxx_debug).quick(),
    ]
}

fn upstream_versions() -> Vec<Cell> {
    let mut cells = Vec::new();
    for pin in pins() {
        let from = |suite: &mut Suite| suite.source = Source::Pin(pin);
        let config = |build: &str| -> &'static str { format!("{pin}-{build}").leak() };
        let release = config("release");
        let suite = VERSIONS.suite(release, &[RELEASE, NO_OBJECT], &["MI_PPROF=1", "MI_BUILD_RELEASE"]);
        cells.push(VERSIONS.cell(release, 60, suite).with(from).quick());
        if *pin != PRIMARY {
            let debug = config("debug");
            let suite = VERSIONS.suite(debug, &[DEBUG, FULL, NO_OBJECT], &["MI_PPROF=1", "MI_DEBUG=3"]);
            cells.push(VERSIONS.cell(debug, 80, suite).with(from).quick());
        }
    }
    cells
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_cells_have_one_name_or_one_build_folder() {
        let cells = cells();
        let mut labels: Vec<String> = cells.iter().map(Cell::label).collect();
        let mut folders: Vec<String> = cells
            .iter()
            .filter_map(|cell| if let Work::Suite(suite) = &cell.work { Some(suite.name.clone()) } else { None })
            .collect();
        for names in [&mut labels, &mut folders] {
            let all = names.len();
            names.sort();
            names.dedup();
            assert_eq!(names.len(), all);
        }
    }

    #[test]
    fn every_pin_is_tested() {
        for pin in pins() {
            assert!(upstream_versions().iter().any(|cell| cell.config.starts_with(pin)), "{pin}");
        }
    }
}
