//! Runs the stock `go tool pprof`, and reads what it prints.

use crate::cmake::run;
use crate::util;
use anyhow::{ensure, Context, Result};
use std::path::{Path, PathBuf};
use xshell::{cmd, Shell};

/// A dump, as a user gives it to pprof.
pub struct Dump<'a> {
    pub shell: &'a Shell,
    pub path: PathBuf,
    /// Where the functions' names are, if not in the program that the dump names.
    pub program: Option<PathBuf>,
}

impl Dump<'_> {
    /// Returns the report. Go keeps its settings and its cache at home: it gets one in `target`.
    pub fn pprof(&self, options: &[&str]) -> Result<String> {
        let (home, program, path) = (util::target_dir().join("go"), &self.program, &self.path);
        let report = path.with_extension("report");
        self.shell.remove_path(&report)?;
        // To the byte, with all that is small, and C++ names with their parameters.
        let all = ["-unit=B", "-nodefraction=0", "-edgefraction=0", "-nodecount=1000", "-symbolize=demangle=full"];
        let command = cmd!(self.shell, "go tool pprof -output={report} {all...} {options...} {program...} {path}");
        run(command.env("HOME", home).env_remove("XDG_CACHE_HOME"))?;
        Ok(self.shell.read_file(&report)?)
    }

    pub fn top(&self, options: &[&str]) -> Result<Table> {
        Table::parse(&self.pprof(&[&["-top"], options].concat())?)
    }

    pub fn display(&self) -> std::path::Display<'_> {
        self.path.display()
    }
}

/// What `-top` prints: `flat flat% sum% cum cum% NAME`, after a heading.
pub struct Table {
    pub rows: Vec<Row>,
}

pub struct Row {
    pub name: String,
    pub flat: f64,
}

impl Table {
    pub fn parse(text: &str) -> Result<Table> {
        let (_, lines) = text.split_once("cum%\n").with_context(|| format!("not a table of pprof's:\n{text}"))?;
        Ok(Table { rows: lines.lines().map(Row::parse).collect::<Result<_>>()? })
    }

    /// What a function allocated itself. What holds nothing is not there.
    pub fn flat(&self, name: &str) -> f64 {
        self.rows.iter().find(|row| row.name == name).map_or(0.0, |row| row.flat)
    }

    pub fn total(&self) -> f64 {
        self.rows.iter().map(|row| row.flat).sum()
    }
}

impl Row {
    fn parse(line: &str) -> Result<Row> {
        let words: Vec<&str> = line.split_whitespace().collect();
        ensure!(words.len() > 5, "not a row of pprof's table: {line}");
        let flat = words[0].trim_end_matches('B').parse().with_context(|| line.to_string())?;
        Ok(Row { name: words[5..].join(" "), flat })
    }
}

/// What `-traces` prints for a sample: its value, and its stack, the leaf first.
pub struct Trace {
    pub value: f64,
    pub stack: Vec<String>,
    /// The lines `KEY:VALUE` above the value.
    pub labels: Vec<String>,
}

/// Each sample stands below a rule.
pub fn traces(text: &str) -> Result<Vec<Trace>> {
    text.split("-----------+")
        .skip(1)
        .map(|part| part.split_once('\n').map_or("", |(_, lines)| lines))
        .filter(|lines| !lines.trim().is_empty())
        .map(trace)
        .collect()
}

fn trace(lines: &str) -> Result<Trace> {
    let is_label =
        |line: &&str| line.split_once(':').is_some_and(|(key, _)| !key.trim().contains(' ')) && !line.contains("::");
    let labels: Vec<String> = lines.lines().take_while(is_label).map(|line| line.trim().to_string()).collect();
    let mut stack = lines.lines().skip(labels.len()).map(str::trim);
    let first = stack.next().unwrap_or_default();
    let (value, leaf) = first.split_once(' ').with_context(|| format!("not a trace of pprof's:\n{lines}"))?;
    let value = value.trim_end_matches('B').parse().with_context(|| format!("not a trace of pprof's:\n{lines}"))?;
    let stack = std::iter::once(leaf.trim()).chain(stack).map(str::to_string).collect();
    Ok(Trace { value, stack, labels })
}

/// The GNU build id of a program or library.
pub fn build_id(shell: &Shell, file: &Path) -> Result<String> {
    let notes = run(cmd!(shell, "readelf --notes {file}"))?;
    let id = notes.lines().find_map(|line| line.trim().strip_prefix("Build ID: "));
    Ok(id.with_context(|| format!("{}: has no build id", file.display()))?.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_is_found_in_the_table() {
        let table = "Type: x\n      flat  flat%   sum%        cum   cum%\n 12B 34.5% 34.5% 90B 34.5%  hold<int, 3>\n 0 0% 100% 7B 1%  main\n";
        let table = Table::parse(table).unwrap();
        assert_eq!(table.flat("hold<int, 3>"), 12.0);
        assert_eq!(table.flat("main"), 0.0);
        assert_eq!(table.flat("hold"), 0.0);
        assert_eq!(table.total(), 12.0);
        assert!(Table::parse("profile is empty").is_err());
    }

    #[test]
    fn traces_have_a_value_labels_and_a_stack() {
        let text = "File: x\n-----------+-----\n     bytes:  [100B]\n    thread:  worker\n   100000B   a::hold<int, 3>\n             serve\n\
            -----------+----\n     1000B   hold_small\n             serve_more\n-----------+---\n";
        let traces = traces(text).unwrap();
        assert_eq!(traces.len(), 2);
        assert_eq!((traces[0].value, traces[0].stack.join(" < ")), (100000.0, "a::hold<int, 3> < serve".to_string()));
        assert_eq!(traces[0].labels, ["bytes:  [100B]", "thread:  worker"]);
        assert!(traces[1].labels.is_empty());
    }
}
