//! What the targets need beyond a C compiler, and how it gets here: by apt on Debian and Ubuntu as root, from a pinned
//! Python wheel, or not at all.

use crate::tools::{self, Source, Wheel};
use anyhow::{ensure, Context, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Something that may be missing.
pub struct Need {
    pub what: &'static str,
    pub why: &'static str,
    present: fn() -> bool,
    remedy: Remedy,
}

enum Remedy {
    /// Debian's packages: one name may depend on the version of a compiler.
    Packages(fn() -> Vec<String>),
    Wheel(&'static Wheel),
}

const fn packages(what: &'static str, why: &'static str, present: fn() -> bool, packages: fn() -> Vec<String>) -> Need {
    Need { what, why, present, remedy: Remedy::Packages(packages) }
}

const fn wheel(wheel: &'static Wheel, why: &'static str, present: fn() -> bool) -> Need {
    Need { what: wheel.name, why, present, remedy: Remedy::Wheel(wheel) }
}

pub const GCC: Need = packages("gcc and g++", "the C compiler", || all(&["gcc", "g++"]), || names(&["gcc", "g++"]));
pub const CLANG: Need =
    packages("clang and clang++", "the C compiler", || all(&["clang", "clang++"]), || names(&["clang"]));
pub const SANITIZERS: Need = packages("clang's sanitizers", "their run-time libraries", links_with_sanitizers, || {
    versioned("clang", &["libclang-rt-VERSION-dev"])
});
pub const SYMBOLIZER: Need = packages(
    "llvm-symbolizer",
    "names the functions in a sanitizer's report",
    || all(&["llvm-symbolizer"]),
    || names(&["llvm"]),
);
pub const OBJDUMP: Need = packages("objdump", "compares machine code", || all(&["objdump"]), || names(&["binutils"]));
pub const PKG_CONFIG: Need =
    packages("pkg-config", "a consumer that asks it", || all(&["pkg-config"]), || names(&["pkg-config"]));
pub const MUSL: Need = packages("musl-gcc", "musl's C library", || all(&["musl-gcc"]), || names(&["musl-tools"]));
/// `gcc-multilib` would remove the compilers for other machines; the versioned packages do not.
pub const MULTILIB: Need = packages("gcc -m32", "32-bit libraries", links_32_bit, || {
    versioned("gcc", &["gcc-VERSION-multilib", "g++-VERSION-multilib"])
});
pub const ARM64: Need = packages(
    "gcc for arm64",
    "cross compiler",
    || all(&["aarch64-linux-gnu-gcc", "aarch64-linux-gnu-g++"]),
    || names(&["g++-aarch64-linux-gnu"]),
);
pub const RISCV64: Need = packages(
    "gcc for riscv64",
    "cross compiler",
    || all(&["riscv64-linux-gnu-gcc", "riscv64-linux-gnu-g++"]),
    || names(&["g++-riscv64-linux-gnu"]),
);
pub const QEMU: Need =
    packages("qemu-user", "runs the tests", || all(&["qemu-aarch64", "qemu-riscv64"]), || names(&["qemu-user"]));
pub const MINGW: Need = packages(
    "MinGW-w64",
    "cross compiler",
    || all(&["x86_64-w64-mingw32-gcc-posix", "x86_64-w64-mingw32-g++-posix"]),
    || names(&["g++-mingw-w64-x86-64-posix"]),
);
pub const WINE: Need = packages("wine64", "runs the tests", || wine().is_some(), || names(&["wine64", "libwine"]));
pub const WINE_SDK: Need = packages(
    "libwine-dev",
    "Windows headers and import libraries",
    || wine_headers().is_some() && wine_libraries().is_some(),
    || names(&["libwine-dev"]),
);
pub const LLD: Need = packages("lld-link", "links for the MSVC ABI", || lld_link().is_some(), || names(&["lld"]));
pub const VALGRIND: Need = packages("valgrind", "runs the tests", || all(&["valgrind"]), || names(&["valgrind"]));
pub const GO: Need = packages("go", "its pprof reads the dumps", || all(&["go"]), || names(&["golang-go"]));
pub const GRAPHVIZ: Need = packages("dot", "draws for pprof", || all(&["dot"]), || names(&["graphviz"]));
pub const PYTHON: Need = packages("python3", "is profiled", || all(&["python3"]), || names(&["python3"]));
pub const SQLITE: Need = packages("sqlite3", "is profiled", || all(&["sqlite3"]), || names(&["sqlite3"]));
pub const LUA: Need = packages("lua5.4", "is profiled", || all(&["lua5.4"]), || names(&["lua5.4"]));
pub const REDIS: Need = packages("redis-server", "is profiled", || all(&["redis-server"]), || names(&["redis-server"]));
pub const MEMCACHED: Need = packages("memcached", "is profiled", || all(&["memcached"]), || names(&["memcached"]));
pub const PIP: Need = packages(
    "python3 with pip",
    "installs pinned tools",
    || tools::python_with_pip().is_ok(),
    || names(&["python3-pip"]),
);
const CMAKE: Need = wheel(&tools::CMAKE, "configures the builds", || there(&tools::CMAKE));
const NINJA: Need = wheel(&tools::NINJA, "builds", || there(&tools::NINJA));
pub const ZIG: Need =
    wheel(&tools::ZIG, "compiler and libraries for systems that cannot run here", || there(&tools::ZIG));
/// What every build needs.
pub const BUILDING: &[&Need] = &[&CMAKE, &NINJA];
/// What builds and runs with a sanitizer need.
pub const SANITIZING: &[&Need] = &[&CLANG, &SANITIZERS, &SYMBOLIZER];
/// For the self-test: nothing can provide it.
pub const IMPOSSIBLE: Need =
    packages("no-such-tool", "planted", || all(&["no-such-tool-anywhere"]), || names(&["no-such-package-anywhere"]));

impl Need {
    pub fn is_present(&self) -> bool {
        (self.present)()
    }

    /// What a person would have to do.
    pub fn advice(&self) -> String {
        match &self.remedy {
            Remedy::Packages(packages) => {
                format!("needs {} ({}); Debian: apt-get install {}", self.what, self.why, packages().join(" "))
            }
            Remedy::Wheel(wheel) => format!("needs {} ({}); pip can install {}", self.what, self.why, wheel.name),
        }
    }

    fn packages(&self) -> Vec<String> {
        match self.remedy {
            Remedy::Packages(packages) => packages(),
            Remedy::Wheel(_) => Vec::new(),
        }
    }

    /// The wheel that is missing.
    fn wheel(&self) -> Option<&'static Wheel> {
        match self.remedy {
            Remedy::Wheel(wheel) if !self.is_present() => Some(wheel),
            _ => None,
        }
    }
}

/// Installs what is missing, if that is allowed and possible. What could not be installed is left missing.
pub fn provide(needs: &[&'static Need], allowed: bool) {
    if !allowed {
        return;
    }
    let mut needs = needs.to_vec();
    if needs.iter().any(|need| need.wheel().is_some()) {
        needs.push(&PIP);
    }
    // What one package brings decides what another one is called: until there is nothing new to try.
    let mut tried = BTreeSet::new();
    loop {
        let missing = needs.iter().filter(|need| !need.is_present());
        let packages = missing.flat_map(|need| need.packages().into_iter().map(move |package| (package, *need)));
        let new: BTreeMap<String, &Need> = packages.filter(|(package, _)| !tried.contains(package)).collect();
        if new.is_empty() {
            break;
        }
        install(&new);
        tried.extend(new.into_keys());
    }
    for wheel in needs.iter().filter_map(|need| need.wheel()) {
        if let Err(error) = tools::obtain(wheel) {
            eprintln!("{error:#}");
        }
    }
}

fn install(wanted: &BTreeMap<String, &Need>) {
    if !apt_works() {
        return eprintln!("packages are installed only on Debian and Ubuntu, as root");
    }
    for (package, need) in wanted {
        eprintln!("installing {package} with apt ({}: {})", need.what, need.why);
    }
    let packages: Vec<&str> = wanted.keys().map(String::as_str).collect();
    if apt(&packages).is_ok() {
        return;
    }
    // The package lists may be old, or not there.
    if let Err(error) = apt_get(&["update", "-o", "APT::Update::Error-Mode=any"]) {
        eprintln!("{error:#}");
    }
    if apt(&packages).is_ok() {
        return;
    }
    // A name that this release does not know must not keep the others away.
    for package in packages {
        if let Err(error) = apt(&[package]) {
            eprintln!("{error:#}");
        }
    }
}

fn apt(packages: &[&str]) -> Result<()> {
    apt_get(&[&["install", "--yes", "--no-install-recommends", "--no-remove"], packages].concat())
}

fn apt_get(args: &[&str]) -> Result<()> {
    let mut command = Command::new("apt-get");
    command.args(["-qq", "-o", "DPkg::Lock::Timeout=300", "-o", "Acquire::Retries=2"]).args(args);
    command.env("DEBIAN_FRONTEND", "noninteractive");
    let output = command.stdin(Stdio::null()).output().context("cannot run apt-get")?;
    let message = String::from_utf8_lossy(&output.stderr);
    let cause = message.lines().find(|line| line.starts_with("E:")).unwrap_or("no message");
    ensure!(output.status.success(), "apt-get {} failed ({cause})", args.join(" "));
    Ok(())
}

fn apt_works() -> bool {
    let root = Command::new("id").arg("-u").output().is_ok_and(|output| output.stdout.trim_ascii() == b"0");
    root && Path::new("/etc/debian_version").is_file() && tools::find("apt-get").is_some()
}

fn there(wheel: &Wheel) -> bool {
    !matches!(wheel.source(), Source::Missing(_))
}

fn all(programs: &[&str]) -> bool {
    programs.iter().all(|program| tools::find(program).is_some())
}

fn names(packages: &[&str]) -> Vec<String> {
    packages.iter().map(|package| package.to_string()).collect()
}

fn links_32_bit() -> bool {
    links("gcc", &["-m32"])
}

fn links_with_sanitizers() -> bool {
    ["address", "undefined", "thread"].iter().all(|name| links("clang", &[&format!("-fsanitize={name}")]))
}

/// Whether a compiler makes a program of an empty `main`.
fn links(compiler: &str, flags: &[&str]) -> bool {
    let program = std::env::temp_dir().join(format!("xtask-probe-{}-{}", std::process::id(), flags.concat().len()));
    let mut command = Command::new(compiler);
    command.args(flags).args(["-x", "c", "-", "-o"]).arg(&program);
    let spawned = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let Ok(mut child) = spawned else { return false };
    let source = child.stdin.take().map(|mut pipe| std::io::Write::write_all(&mut pipe, b"int main(void){return 0;}"));
    let linked = child.wait().is_ok_and(|status| status.success()) && matches!(source, Some(Ok(())));
    let _ = std::fs::remove_file(&program);
    linked
}

/// Names of packages with a compiler's major version in them; none while the compiler is not there.
fn versioned(compiler: &str, packages: &[&str]) -> Vec<String> {
    let version = tools::find(compiler).and_then(|compiler| tools::first_line(&compiler, &["-dumpversion"]));
    let major = version.as_deref().and_then(|version| version.split('.').next());
    major.map_or(Vec::new(), |major| packages.iter().map(|package| package.replace("VERSION", major)).collect())
}

/// The program itself: the script of that name on PATH asks for 32-bit support.
pub fn wine() -> Option<PathBuf> {
    let known = ["/usr/lib/wine/wine64", "/usr/lib/x86_64-linux-gnu/wine/wine64"].map(PathBuf::from);
    known.into_iter().find(|path| path.is_file()).or_else(|| tools::find("wine64"))
}

pub fn wine_server() -> Option<PathBuf> {
    let beside = |name: &str| Some(wine()?.with_file_name(name)).filter(|path| path.is_file());
    beside("wineserver64").or_else(|| beside("wineserver")).or_else(|| tools::find("wineserver"))
}

/// The folder that holds `msvcrt` and `windows`.
pub fn wine_headers() -> Option<PathBuf> {
    let known = ["/usr/include/wine/wine", "/usr/include/wine"].map(PathBuf::from);
    known.into_iter().find(|folder| folder.join("windows/windows.h").is_file())
}

/// The folder of the import libraries for 64-bit programs.
pub fn wine_libraries() -> Option<PathBuf> {
    let known = ["/usr/lib/x86_64-linux-gnu/wine/x86_64-windows", "/usr/lib/wine/x86_64-windows"].map(PathBuf::from);
    known.into_iter().find(|folder| folder.join("libkernel32.a").is_file())
}

pub fn lld_link() -> Option<PathBuf> {
    let versioned = (14..=22).rev().map(|version| format!("lld-link-{version}"));
    std::iter::once("lld-link".to_string()).chain(versioned).find_map(|name| tools::find(&name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nothing_can_provide_stays_missing_and_the_advice_names_it() {
        provide(&[&IMPOSSIBLE], false);
        assert!(!IMPOSSIBLE.is_present());
        assert_eq!(
            IMPOSSIBLE.advice(),
            "needs no-such-tool (planted); Debian: apt-get install no-such-package-anywhere"
        );
    }

    #[test]
    fn a_compiler_that_is_not_there_links_nothing() {
        assert!(!links("no-such-tool-anywhere", &[]));
    }
}
