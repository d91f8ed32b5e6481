//! The workflows under `.github/workflows`, checked without a runner: their schema, what the linter knows about their
//! security, and that every `cargo xtask` command in them exists. What a runner then does, only a runner tells.

use crate::cmake::run;
use crate::{tools, util};
use anyhow::{bail, ensure, Context, Result};
use clap::Parser;
use serde_json::Value;
use std::path::{Path, PathBuf};
use xshell::{cmd, Shell};

/// The second one asks for a `timeout-minutes` in every job.
const SCHEMAS: [&str; 2] = ["vendor.github-workflows", "custom.github-workflows-require-timeout"];

/// A Python package at a pinned version, with all that it needs.
struct Pinned {
    name: &'static str,
    version: &'static str,
    needs: &'static [&'static str],
}

const CHECK_JSONSCHEMA: Pinned = Pinned {
    name: "check-jsonschema",
    version: "0.39.0",
    needs: &[
        "attrs==26.1.0",
        "certifi==2026.10.19.post1",
        "charset-normalizer==3.5.3",
        "click==8.5.1",
        "idna==3.20",
        "jsonschema==4.26.0",
        "jsonschema-specifications==2025.9.1",
        "referencing==0.37.0",
        "regress==2026.9.1",
        "requests==2.34.2",
        "rpds-py==2026.9.1",
        "ruamel.yaml==0.19.1",
        "typing_extensions==4.16.0",
        "urllib3==2.8.0",
    ],
};

const ZIZMOR: Pinned = Pinned { name: "zizmor", version: "1.32.0", needs: &[] };

/// Checks all workflows; returns how many checks there were.
pub fn check(shell: &Shell) -> Result<usize> {
    let folder = util::repo_root().join(".github/workflows");
    let mut files = shell.read_dir(&folder)?;
    files.retain(|file| file.extension().is_some_and(|extension| extension == "yml" || extension == "yaml"));
    ensure!(!files.is_empty(), "{}: no workflows", folder.display());
    check_files(shell, &files)
}

/// Each check must see the fault that it is there for, in a workflow that is otherwise ours.
pub fn planted(shell: &Shell) -> Result<usize> {
    let ours = shell.read_file(util::repo_root().join(".github/workflows/ci.yml"))?;
    for plant in PLANTS {
        let file = util::target_dir().join("test/workflows").join(plant.name).join("ci.yml");
        ensure!(ours.contains(plant.instead_of), "ci.yml has no '{}' to plant '{}' in", plant.instead_of, plant.name);
        shell.write_file(&file, ours.replacen(plant.instead_of, plant.plant, 1))?;
        match check_files(shell, &[file]) {
            Ok(_) => bail!("a planted fault was not noticed: {}", plant.name),
            Err(error) => {
                let noticed = format!("{error:#}").contains(plant.noticed_as);
                ensure!(noticed, "a planted fault is not the one that was noticed: {}\n{error:#}", plant.name);
            }
        }
    }
    Ok(PLANTS.len())
}

struct Plant {
    name: &'static str,
    instead_of: &'static str,
    plant: &'static str,
    /// A part of the message.
    noticed_as: &'static str,
}

const PLANTS: [Plant; 8] = [
    Plant {
        name: "no such job",
        instead_of: "  rust-native:\n",
        plant: "  rust:\n",
        noticed_as: "no job 'rust-native'",
    },
    Plant {
        name: "a command of its own",
        instead_of: "run: cargo xtask fuzz",
        plant: "run: make fuzz",
        noticed_as: "make fuzz --seconds 3600: a step calls cargo xtask and nothing else",
    },
    Plant {
        name: "unknown key",
        instead_of: "timeout-minutes:",
        plant: "timeout_minutes:",
        noticed_as: "'timeout_minutes' was unexpected",
    },
    Plant {
        name: "no timeout",
        instead_of: "    timeout-minutes: 60\n",
        plant: "",
        noticed_as: "'timeout-minutes' is a required property",
    },
    Plant {
        name: "credentials kept",
        instead_of: "        with:\n          persist-credentials: false\n",
        plant: "",
        noticed_as: "artipacked",
    },
    Plant {
        name: "action by its tag",
        instead_of: "@de0fac2e4500dabe0009e67214ff5f5447ce83dd # v6.0.2",
        plant: "@v6",
        noticed_as: "unpinned-uses",
    },
    Plant {
        name: "unknown command",
        instead_of: "cargo xtask test --only",
        plant: "cargo xtask tset --only",
        noticed_as: "unrecognized subcommand 'tset'",
    },
    Plant {
        name: "unknown step",
        instead_of: "--only off-proof",
        plant: "--only of-proof",
        noticed_as: "no 'of-proof' in cargo xtask test-all --list",
    },
];

fn check_files(shell: &Shell, files: &[PathBuf]) -> Result<usize> {
    let python = Python::provision(shell)?;
    for schema in SCHEMAS {
        python.check_schema(shell, schema, files)?;
    }
    lint(shell, files)?;

    let xtask = util::this_program()?;
    let (mut checked, mut faults) = (0, Vec::new());
    for file in files {
        let workflow = python.read_yaml(shell, file)?;
        if file.ends_with("ci.yml") {
            faults.extend(ci_faults(&workflow));
        }
        for line in command_lines(&workflow) {
            checked += 1;
            let fault = check_command(shell, &xtask, &line).err();
            faults.extend(fault.map(|error| format!("{}: {line}\n  {error:#}", file.display())));
        }
    }
    ensure!(faults.is_empty(), "{}", faults.join("\n"));
    ensure!(checked > 0, "no workflow calls cargo xtask");
    Ok(files.len() * (SCHEMAS.len() + 1) + checked)
}

/// A Python that finds `check-jsonschema` and the YAML reader that comes with it.
struct Python {
    program: PathBuf,
    packages: PathBuf,
}

impl Python {
    fn provision(shell: &Shell) -> Result<Python> {
        Ok(Python { program: tools::python_with_pip()?, packages: CHECK_JSONSCHEMA.provision(shell)? })
    }

    fn check_schema(&self, shell: &Shell, schema: &str, files: &[PathBuf]) -> Result<()> {
        let (python, packages) = (&self.program, &self.packages);
        let check = cmd!(shell, "{python} -m check_jsonschema --builtin-schema {schema} {files...}");
        run(check.env("PYTHONPATH", packages)).map(drop)
    }

    fn read_yaml(&self, shell: &Shell, file: &Path) -> Result<Value> {
        const TO_JSON: &str = "import json, sys; from ruamel.yaml import YAML; \
            print(json.dumps(YAML(typ='safe', pure=True).load(open(sys.argv[1], encoding='utf-8'))))";
        let python = &self.program;
        let json = run(cmd!(shell, "{python} -c {TO_JSON} {file}").env("PYTHONPATH", &self.packages))?;
        serde_json::from_str(&json).with_context(|| file.display().to_string())
    }
}

fn lint(shell: &Shell, files: &[PathBuf]) -> Result<()> {
    let packages = ZIZMOR.provision(shell)?;
    let programs = ["bin/zizmor", "bin/zizmor.exe", "Scripts/zizmor.exe"].map(|program| packages.join(program));
    let zizmor = programs.iter().find(|program| program.is_file());
    let zizmor = zizmor.with_context(|| format!("{}: no zizmor in it", packages.display()))?;
    let options = ["--offline", "--no-config", "--strict-collection", "--pedantic", "--quiet", "--color", "never"];
    run(cmd!(shell, "{zizmor} {options...} {files...}")).map(drop)
}

impl Pinned {
    /// Its folder in `target/tools`; installed aside and renamed, so that an interrupted run leaves no half of it.
    fn provision(&self, shell: &Shell) -> Result<PathBuf> {
        let Pinned { name, version, needs } = *self;
        let tools = util::target_dir().join("tools");
        let folder = tools.join(format!("{name}-{version}"));
        if folder.is_dir() {
            return Ok(folder);
        }
        let python = tools::python_with_pip()?;
        let staging = tools.join(format!("{name}-{version}.tmp{}", std::process::id()));
        eprintln!("installing {name}=={version} with pip into {} (checks the workflows)", folder.display());
        let options = [
            "--quiet",
            "--disable-pip-version-check",
            "--no-cache-dir",
            "--no-compile",
            "--no-deps",
            "--only-binary",
            ":all:",
        ];
        let install =
            cmd!(shell, "{python} -m pip install {options...} --target {staging} {name}=={version} {needs...}");
        let installed = run(install).and_then(|_| match std::fs::rename(&staging, &folder) {
            Err(_) if folder.is_dir() => Ok(()),
            result => result.with_context(|| folder.display().to_string()),
        });
        let _ = std::fs::remove_dir_all(&staging);
        installed.map(|()| folder)
    }
}

/// Jobs that ci.yml must have, and what a step of it may do besides `cargo xtask`: install.
const JOBS: [&str; 2] = ["c-unit", "rust-native"];
const INSTALL: [&str; 2] = ["apk add ", "rustup component add "];

fn ci_faults(workflow: &Value) -> Vec<String> {
    let absent = JOBS.iter().filter(|job| workflow["jobs"][**job].is_null());
    let absent = absent.map(|job| format!("ci.yml has no job '{job}'"));
    let may = |line: &str| line.starts_with("cargo xtask ") || INSTALL.iter().any(|start| line.starts_with(start));
    let clever = lines(workflow).into_iter().filter(|line| !may(line));
    absent.chain(clever.map(|line| format!("ci.yml: {line}: a step calls cargo xtask and nothing else"))).collect()
}

/// The lines that call `cargo xtask`, of every step of every job.
fn command_lines(workflow: &Value) -> Vec<String> {
    lines(workflow).into_iter().filter(|line| line.contains("cargo xtask")).collect()
}

fn lines(workflow: &Value) -> Vec<String> {
    let jobs = workflow["jobs"].as_object().into_iter().flatten();
    let steps = jobs.flat_map(|(_, job)| job["steps"].as_array().into_iter().flatten());
    let lines = steps.flat_map(|step| step["run"].as_str().unwrap_or_default().lines());
    lines.map(|line| line.trim().to_string()).collect()
}

/// Asks the command line's own parser, and `--list` for what `--only` names.
fn check_command(shell: &Shell, xtask: &Path, line: &str) -> Result<()> {
    let words = words(line)?;
    let arguments = words.strip_prefix(&["cargo".to_string(), "xtask".to_string()]);
    let arguments = arguments.context("a step calls cargo xtask and nothing else")?;
    let parsed = crate::Command::try_parse_from(std::iter::once(&"cargo xtask".to_string()).chain(arguments));
    if let Err(error) = parsed {
        bail!("{}", error.to_string().lines().next().unwrap_or_default());
    }
    for name in selected(arguments) {
        let command = &arguments[0];
        let listed = run(cmd!(shell, "{xtask} {command} --list --only {name}"));
        let found = listed.is_ok_and(|names| !names.trim().is_empty());
        ensure!(found, "there is no '{name}' in cargo xtask {command} --list");
    }
    Ok(())
}

/// What `--only` names.
fn selected(arguments: &[String]) -> Vec<&String> {
    let after = arguments.iter().skip_while(|word| *word != "--only").skip(1);
    after.take_while(|word| !word.starts_with("--")).collect()
}

/// A line as a shell splits it. What any of the runners' shells would do more than that is an error.
fn words(line: &str) -> Result<Vec<String>> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    for character in line.chars() {
        match (quote, character) {
            (None, '\'' | '"') => {
                quote = Some(character);
                word.get_or_insert_default();
            }
            (Some(open), _) if open == character => quote = None,
            (None, ' ') => words.extend(word.take()),
            (None, '|' | '&' | ';' | '<' | '>' | '`' | '\\') => bail!("'{character}': one command, and no more"),
            _ => word.get_or_insert_default().push(character),
        }
    }
    ensure!(quote.is_none(), "a quote is not closed");
    ensure!(!line.contains("${{"), "an expression: what it stands for cannot be checked");
    words.extend(word);
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check(line: &str) -> Result<()> {
        check_command(&Shell::new().unwrap(), Path::new("/nonexistent/xtask"), line)
    }

    fn message(line: &str) -> String {
        format!("{:#}", check(line).unwrap_err())
    }

    #[test]
    fn lines_are_split_as_a_shell_does() {
        let line = "cargo xtask test --only \"ctest: release, on\" 'it''s' \"\" plain";
        assert_eq!(
            words(line).unwrap(),
            ["cargo", "xtask", "test", "--only", "ctest: release, on", "its", "", "plain"]
        );
        assert_eq!(words("--out \"target/$NAME\"").unwrap(), ["--out", "target/$NAME"]);
        for clever in ["a | b", "a && b", "a; b", "a > b", "a `b`", "a \\", "a \"b", "a ${{ matrix.b }}"] {
            assert!(words(clever).is_err(), "{clever}");
        }
    }

    #[test]
    fn commands_are_found_in_every_step() {
        let workflow = json!({"jobs": {
            "one": {"steps": [{"uses": "a"}, {"run": "cargo xtask doctor"}, {"run": "echo\n  cargo xtask demo\n"}]},
            "two": {"steps": [{"run": "env cargo xtask test"}]},
            "called": {"uses": "./other.yml"},
        }});
        assert_eq!(command_lines(&workflow), ["cargo xtask doctor", "cargo xtask demo", "env cargo xtask test"]);
        assert!(command_lines(&json!({})).is_empty());
    }

    #[test]
    fn ci_does_nothing_clever() {
        let steps = json!([{"run": "apk add g++"}, {"run": "cargo xtask doctor"}, {"run": "make"}]);
        let workflow = json!({"jobs": {"c-unit": {"steps": steps}}});
        let faults = ci_faults(&workflow);
        assert_eq!(faults.len(), 2, "{faults:?}");
        assert!(faults[0].contains("rust-native") && faults[1].contains("make"), "{faults:?}");
    }

    #[test]
    fn only_existing_commands_and_options_pass() {
        check("cargo xtask doctor").unwrap();
        check("cargo xtask materialize --out \"target/release/$NAME\"").unwrap();
        assert!(message("cargo xtask docter").contains("unrecognized subcommand 'docter'"));
        assert!(message("cargo xtask doctor --fast").contains("unexpected argument '--fast'"));
        assert!(message("env cargo xtask doctor").contains("nothing else"));
        assert!(check("cargo xtask").is_err());
    }

    #[test]
    fn what_only_names_must_be_listed() {
        let words = words("test --only a \"b c\" --list --only").unwrap();
        assert_eq!(selected(&words), ["a", "b c"]);
        assert!(selected(&words[..1]).is_empty());
        assert!(message("cargo xtask test --only a").contains("no 'a' in cargo xtask test --list"));
    }

    #[test]
    fn every_fault_can_be_planted() {
        let ours = std::fs::read_to_string(util::repo_root().join(".github/workflows/ci.yml")).unwrap();
        for plant in PLANTS {
            assert!(ours.contains(plant.instead_of), "{}", plant.name);
        }
    }
}
