//! What differs from system to system: for the builds on it, and for those that are cross-compiled to it.

/// What mimalloc must be told where musl is the C library.
pub const MUSL: &[&str] = &["-DMI_LIBC_MUSL=ON"];
/// The crate does not bring upstream's redirection of `malloc`.
pub const MSVC: &[&str] = &["-DMI_WIN_REDIRECT=OFF"];
/// Without `MI_WIN_USE_FLS` upstream does not see a thread end.
pub const MINGW: &[&str] = &[
    "-DMI_WIN_REDIRECT=OFF",
    "-DMI_WIN_USE_FLS=ON",
    "-DCMAKE_EXE_LINKER_FLAGS=-static",
    "-DCMAKE_SHARED_LINKER_FLAGS=-static",
];

/// The options of the machine that this runs on.
pub fn host_options() -> &'static [&'static str] {
    let by_gcc = cfg!(target_env = "gnu") || std::env::var("CC").is_ok_and(|compiler| compiler.contains("gcc"));
    if cfg!(target_env = "musl") {
        MUSL
    } else if !cfg!(windows) {
        &[]
    } else if by_gcc {
        MINGW
    } else {
        MSVC
    }
}

/// The variable that names a library to load before all others. Windows has none.
pub const PRELOAD: Option<&str> = if cfg!(target_os = "macos") {
    Some("DYLD_INSERT_LIBRARIES")
} else if cfg!(windows) {
    None
} else {
    Some("LD_PRELOAD")
};

/// The file of a shared library.
pub fn shared_library(name: &str) -> String {
    format!("{}{name}{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX)
}
