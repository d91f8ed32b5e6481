//! The text of the pull request: a template, and what was measured when it was made.

use super::series::Series;
use crate::cmake::cc;
use crate::hooks::{self, Hook, Part};
use crate::measure::{self, Libraries};
use crate::upstream::Upstream;
use crate::{fastpath, offproof, tools, util};
use anyhow::{bail, ensure, Context, Result};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;
use xshell::Shell;

const TEMPLATE: &str = include_str!("../../upstream-pr/pull-request.md");

pub fn pull_request(shell: &Shell, upstream: &Upstream, series: &Series, tested: Option<String>) -> Result<String> {
    let version = series.base.version()?;
    let mut all = hooks::load(&util::hooks_file())?;
    all.retain(|hook| hook.applies_to(version).unwrap_or(true));
    let all: Vec<Hook> = all.iter().map(Hook::without_markers).collect();
    let applied = hooks::apply(&all, version, |file| series.base.text(file))?;
    let lines: usize = applied.outcomes.iter().map(|outcome| outcome.lines).sum();
    let files: BTreeSet<&str> = all.iter().map(|hook| hook.file.as_str()).collect();

    println!("measuring");
    let libraries = Libraries::build(shell, upstream)?;
    fill(&[
        ("version", version.to_string()),
        ("patches", patches(series)),
        ("hooks", all.len().to_string()),
        ("lines", lines.to_string()),
        ("files", files.len().to_string()),
        ("calls", calls(&all)),
        ("fast_paths", fast_paths(shell, upstream)?),
        ("instructions", instructions(shell, &libraries)?),
        ("sizes", sizes(shell, &libraries)?),
        ("off_proof", off_proof(shell, upstream)?),
        ("tested", [tested_here()?, tested.unwrap_or_default()].concat()),
    ])
}

fn fill(values: &[(&str, String)]) -> Result<String> {
    let mut text = TEMPLATE.to_string();
    for (name, value) in values {
        let place = format!("{{{{{name}}}}}");
        ensure!(text.contains(&place), "the template has no {place}");
        text = text.replace(&place, value.trim_end());
    }
    ensure!(!text.contains("{{"), "the template has a place that nothing fills");
    Ok(text)
}

fn patches(series: &Series) -> String {
    series.patches.iter().enumerate().map(|(at, patch)| format!("{}. {}\n", at + 1, patch.subject)).collect()
}

fn table<const N: usize>(head: [&str; N], rows: impl IntoIterator<Item = [String; N]>) -> String {
    let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    let mut text = line(head.map(str::to_string).to_vec()) + &line(vec!["---".to_string(); N]);
    rows.into_iter().for_each(|row| text += &line(row.to_vec()));
    text
}

fn calls(hooks: &[Hook]) -> String {
    let calls = hooks.iter().filter(|hook| hook.part == Part::Hooks);
    let place = |hook: &Hook| match &hook.scope {
        Some(scope) => format!("`{}` in `{}`", scope, hook.file),
        None => format!("`{}`", hook.file),
    };
    table(["where", "what for", "cost"], calls.map(|hook| [place(hook), hook.why.clone(), hook.cost.clone()]))
}

fn fast_paths(shell: &Shell, upstream: &Upstream) -> Result<String> {
    let functions = fastpath::prove(shell, upstream)?;
    let row = |(name, count): (&str, usize)| [format!("`{name}`"), count.to_string(), count.to_string()];
    Ok(table(["function", "pristine", "with the profiler"], functions.into_iter().map(row)))
}

fn instructions(shell: &Shell, libraries: &Libraries) -> Result<String> {
    let Some(workloads) = measure::instructions(shell, libraries)? else {
        return Ok("Not measured: there was no valgrind where this text was made.".into());
    };
    let mut rows = Vec::new();
    for workload in &workloads {
        rows.push([workload.name.to_string(), "pristine".into(), format!("{:.1}", workload.pristine), String::new()]);
        for (what, count) in &workload.profiled {
            let percent = format!("{:+.1} %", (count / workload.pristine - 1.0) * 100.0);
            rows.push([String::new(), what.to_string(), format!("{count:.1}"), percent]);
        }
    }
    let about =
        "Counted by callgrind, for one `mi_free` and one `mi_malloc` with the loop around them; active is at the \
                 default rate of 512 KiB, with stacks by the default unwinder, or none. OFF has pristine's code, so its row shows what the runs \
                 vary by.";
    Ok(format!("{about}\n\n{}", table(["workload", "profiler", "instructions", "difference"], rows)))
}

fn sizes(shell: &Shell, libraries: &Libraries) -> Result<String> {
    let code = measure::code_sizes(libraries)?;
    let [pristine, off, on] = [0, 1, 2].map(|at| code[at].1.to_string());
    let mut rows = vec![["code of the static library".to_string(), pristine, off, on]];
    for (name, sizes) in measure::struct_sizes(shell, libraries)? {
        let [pristine, off, on] = sizes.map(|size| size.to_string());
        rows.push([format!("`{name}`"), pristine, off, on]);
    }
    Ok(format!("Bytes, Release:\n\n{}", table(["", "pristine", "OFF", "ON"], rows)))
}

fn off_proof(shell: &Shell, upstream: &Upstream) -> Result<String> {
    offproof::source(upstream)?;
    let objects = offproof::code(shell, upstream)?;
    let pairs = offproof::static_c(shell, upstream)?;
    let tests = offproof::upstream_tests(shell, upstream)?;
    Ok(format!(
        "- Without the lines between `#if MI_PPROF` and `#endif` every C file has upstream's bytes.\n\
         - All {objects} objects of a Release build have the same code and data as upstream's, relocations included.\n\
         - So has `static.c`, in {pairs} combinations of gcc and clang with Release and Debug (where `__LINE__` is 0 on both \
         sides, as an assertion knows its line).\n\
         - {tests} of upstream's tests print the same, the statistics of `test-stress` included.\n"
    ))
}

fn tested_here() -> Result<String> {
    let compiler = tools::find(&cc()).and_then(|cc| tools::first_line(&cc, &["--version"])).unwrap_or_else(cc);
    Ok(format!(
        "- Here ({} {}, {compiler}): after each patch, with `MI_PPROF` ON and OFF, the library compiles and `test-api`, \
         `test-api-fill` and `test-stress` pass, and `test-profile` once it is there.\n\
         - `git am` and `git apply --3way` make the same tree of a clean checkout.\n",
        std::env::consts::OS,
        std::env::consts::ARCH,
    ))
}

/// What `cargo xtask test-all --json` found, as a table. Failures are no text for a pull request.
pub fn tested_elsewhere(file: &Path) -> Result<String> {
    let name = file.display();
    let text = std::fs::read_to_string(file).with_context(|| format!("{name}: cannot be read"))?;
    let report: Value = serde_json::from_str(&text).with_context(|| format!("{name}: is no JSON"))?;
    let rows =
        report["rows"].as_array().with_context(|| format!("{name}: not written by cargo xtask test-all --json"))?;
    let mut table_rows = Vec::new();
    for row in rows {
        let word = |key: &str| row[key].as_str().unwrap_or_default().to_string();
        let tests = row["tests"].as_array().context("a row without tests")?;
        let count = |verdict: &str| tests.iter().filter(|test| test["verdict"] == verdict).count();
        if !row["error"].is_null() || count("failed") > 0 {
            bail!("{name}: {}/{} failed", word("target"), word("config"));
        }
        if row["skipped"].is_null() {
            table_rows.push([word("target"), word("config"), count("passed").to_string()]);
        }
    }
    ensure!(!table_rows.is_empty(), "{name}: nothing ran");
    Ok(format!("\n{}", table(["target", "configuration", "tests passed"], table_rows)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_place_of_the_template_is_filled_or_it_is_an_error() {
        let places = TEMPLATE.split("{{").skip(1).filter_map(|part| part.split_once("}}"));
        let mut values: Vec<(&str, String)> = places.map(|(name, _)| (name, "x".to_string())).collect();
        assert!(fill(&values).unwrap().contains("mimalloc x."));
        values.pop();
        assert!(fill(&values).is_err());
    }

    #[test]
    fn a_report_with_a_failure_is_no_text() {
        let file = std::env::temp_dir().join(format!("xtask-tested-{}.json", std::process::id()));
        let row = |verdict: &str| {
            format!(
                r#"{{"rows":[{{"target":"linux","config":"on","error":null,"skipped":null,
                "tests":[{{"name":"a","verdict":"{verdict}"}}]}}]}}"#
            )
        };
        std::fs::write(&file, row("passed")).unwrap();
        assert!(tested_elsewhere(&file).unwrap().contains("| linux | on | 1 |"));
        std::fs::write(&file, row("failed")).unwrap();
        assert!(tested_elsewhere(&file).is_err());
        std::fs::remove_file(file).unwrap();
    }
}
