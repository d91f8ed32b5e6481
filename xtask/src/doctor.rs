//! `cargo xtask doctor`: which tools are there, which are missing, and what will be installed by itself.

use crate::tools::{self, Source, Wheel};
use anyhow::{ensure, Result};
use std::path::Path;

/// A tool that has to be there already, under one of several names.
struct Tool {
    name: &'static str,
    /// An environment variable that may name it, as make and CMake have it.
    variable: Option<&'static str>,
    programs: &'static [&'static str],
    version: &'static [&'static str],
    required: bool,
    used_for: &'static str,
    remedy: &'static str,
}

const TOOLS: &[Tool] = &[
    Tool {
        name: "cargo",
        variable: Some("CARGO"),
        programs: &["cargo"],
        version: &["--version"],
        required: true,
        used_for: "everything",
        remedy: "install Rust with rustup",
    },
    Tool {
        name: "C compiler",
        variable: Some("CC"),
        programs: &["cc", "gcc", "clang"],
        version: &["--version"],
        required: true,
        used_for: "demo, test",
        remedy: "Debian: apt-get install gcc",
    },
    Tool {
        name: "C++ compiler",
        variable: Some("CXX"),
        programs: &["c++", "g++", "clang++"],
        version: &["--version"],
        required: true,
        used_for: "demo, test",
        remedy: "Debian: apt-get install g++",
    },
    Tool {
        name: "objdump",
        variable: None,
        programs: &["objdump", "llvm-objdump"],
        version: &["--version"],
        required: true,
        used_for: "test (compares machine code)",
        remedy: "Debian: apt-get install binutils",
    },
    Tool {
        name: "git",
        variable: None,
        programs: &["git"],
        version: &["--version"],
        required: true,
        used_for: "test, upstream-pr, and reapply to a git checkout",
        remedy: "Debian: apt-get install git",
    },
    Tool {
        name: "go",
        variable: None,
        programs: &["go"],
        version: &["version"],
        required: false,
        used_for: "go tool pprof",
        remedy: "Debian: apt-get install golang-go",
    },
    Tool {
        name: "sqlite3",
        variable: None,
        programs: &["sqlite3"],
        version: &["--version"],
        required: false,
        used_for: "demo (else python3)",
        remedy: "Debian: apt-get install sqlite3",
    },
    Tool {
        name: "valgrind",
        variable: None,
        programs: &["valgrind"],
        version: &["--version"],
        required: false,
        used_for: "counting instructions",
        remedy: "Debian: apt-get install valgrind",
    },
];

/// What is known about one tool.
struct Finding {
    name: &'static str,
    state: String,
    used_for: &'static str,
    /// A required tool that nothing here can install.
    fatal: bool,
}

pub fn run() -> Result<()> {
    let wheels = [&tools::CMAKE, &tools::NINJA].map(|wheel| (wheel, wheel.source()));
    let provisioning = wheels.iter().any(|(_, source)| matches!(source, Source::Missing(_)));
    let python = python(provisioning);
    let has_python = !python.state.starts_with("missing");

    let mut findings: Vec<Finding> = TOOLS.iter().map(Tool::look).collect();
    findings.push(python);
    findings.extend(wheels.iter().map(|(wheel, source)| look_at_wheel(wheel, source, has_python)));

    for finding in &findings {
        println!("{:<13} {}  [{}]", finding.name, finding.state, finding.used_for);
    }
    let missing: Vec<&str> = findings.iter().filter(|finding| finding.fatal).map(|finding| finding.name).collect();
    ensure!(missing.is_empty(), "missing and required: {}; install as the lines above say", missing.join(", "));
    println!("\nready: everything that is required is there or installs itself");
    Ok(())
}

impl Tool {
    fn look(&self) -> Finding {
        let path = self.candidates().into_iter().find_map(|program| tools::find(&program));
        let state = match &path {
            Some(path) => found(path, self.version),
            None => format!("missing; {}", self.remedy),
        };
        Finding { name: self.name, state, used_for: self.used_for, fatal: self.required && path.is_none() }
    }

    /// The variable wins: a tool that it names and that is not there is missing, as it will be for the build.
    /// Arguments may follow the name.
    fn candidates(&self) -> Vec<String> {
        let value = self.variable.and_then(|variable| std::env::var(variable).ok()).unwrap_or_default();
        match value.split_whitespace().next() {
            Some(program) => vec![program.to_string()],
            None => self.programs.iter().map(|program| program.to_string()).collect(),
        }
    }
}

fn found(path: &Path, version: &[&str]) -> String {
    let version = tools::first_line(path, version).unwrap_or("does not tell its version".into());
    format!("{} ({version})", path.display())
}

fn python(required: bool) -> Finding {
    let (state, fatal) = match tools::python_with_pip() {
        Ok(python) => (found(&python, &["-m", "pip", "--version"]), false),
        Err(error) => (format!("missing; {error}"), required),
    };
    Finding { name: "python3, pip", state, used_for: "installing cmake and ninja; demo", fatal }
}

fn look_at_wheel(wheel: &Wheel, source: &Source, has_python: bool) -> Finding {
    let (state, fatal) = match source {
        Source::Path(path) | Source::Provisioned(path) => (found(path, &["--version"]), false),
        Source::Missing(reason) => {
            let (name, version, folder) = (wheel.name, wheel.version, wheel.folder());
            (
                format!("{reason}; demo and test will install {name}=={version} with pip into {}", folder.display()),
                !has_python,
            )
        }
    };
    Finding { name: wheel.name, state, used_for: "demo, test", fatal }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ABSENT: Tool = Tool {
        name: "absent",
        variable: None,
        programs: &["no-such-tool-anywhere"],
        version: &["--version"],
        required: true,
        used_for: "nothing",
        remedy: "install it",
    };

    #[test]
    fn a_missing_tool_is_fatal_only_when_required() {
        let finding = ABSENT.look();
        assert_eq!((finding.state.as_str(), finding.fatal), ("missing; install it", true));
        assert!(!Tool { required: false, ..ABSENT }.look().fatal);
    }

    #[test]
    fn a_wheel_that_pip_cannot_install_is_fatal() {
        let missing = Source::Missing("not on PATH".into());
        assert!(look_at_wheel(&tools::NINJA, &missing, false).fatal);
        let finding = look_at_wheel(&tools::NINJA, &missing, true);
        assert!(!finding.fatal);
        assert!(
            finding.state.starts_with("not on PATH; demo and test will install ninja==1.13.2 with pip into "),
            "{}",
            finding.state
        );
    }

    #[test]
    fn cargo_is_found() {
        let finding = TOOLS[0].look();
        assert!(!finding.fatal);
        assert!(finding.state.contains("cargo 1."), "{}", finding.state);
    }
}
