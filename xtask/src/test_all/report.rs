//! What became of each cell of the matrix, as a table and as JSON.

use anyhow::{Context, Result};
use serde::Serialize;
use std::path::Path;

#[derive(Clone, Serialize)]
#[serde(rename_all = "lowercase", tag = "verdict", content = "detail")]
pub enum Verdict {
    /// How many tests it stands for.
    Passed(usize),
    /// Why.
    Skipped(String),
    /// All that is known about it.
    Failed(String),
}

#[derive(Clone, Serialize)]
pub struct Test {
    pub name: String,
    pub seconds: f64,
    #[serde(flatten)]
    pub verdict: Verdict,
}

/// One row of the table.
#[derive(Serialize)]
pub struct Row {
    pub target: &'static str,
    pub config: &'static str,
    /// Why it did not run at all.
    pub skipped: Option<String>,
    /// Why it could not be built, or not be run.
    pub error: Option<String>,
    /// Whether there was something to build, and it was built.
    pub built: Option<bool>,
    pub build_seconds: f64,
    pub seconds: f64,
    pub tests: Vec<Test>,
}

impl Row {
    pub fn new(target: &'static str, config: &'static str) -> Row {
        let (skipped, error, built) = (None, None, None);
        Row { target, config, skipped, error, built, build_seconds: 0.0, seconds: 0.0, tests: Vec::new() }
    }

    pub fn label(&self) -> String {
        format!("{}/{}", self.target, self.config)
    }

    pub fn passed(&self) -> usize {
        self.tests.iter().map(|test| if let Verdict::Passed(count) = test.verdict { count } else { 0 }).sum()
    }

    pub fn left_out(&self) -> usize {
        self.tests.iter().filter(|test| matches!(test.verdict, Verdict::Skipped(_))).count()
    }

    pub fn failed(&self) -> usize {
        let failures = self.tests.iter().filter(|test| matches!(test.verdict, Verdict::Failed(_))).count();
        failures + usize::from(self.error.is_some())
    }

    /// What took the time.
    fn longest(&self) -> String {
        let tests = self.tests.iter().map(|test| (test.name.as_str(), test.seconds));
        let parts = tests.chain([("build", self.build_seconds)]);
        let mut parts: Vec<_> = parts.filter(|(_, seconds)| *seconds >= 0.1 * self.seconds).collect();
        parts.sort_by(|a, b| b.1.total_cmp(&a.1));
        parts.truncate(3);
        parts.iter().map(|(name, seconds)| format!("{name} {seconds:.0}")).collect::<Vec<_>>().join(", ")
    }

    fn line(&self) -> String {
        let built = match (&self.skipped, self.built) {
            (Some(_), _) => "skipped",
            (None, Some(true)) => "yes",
            (None, Some(false)) => "FAILED",
            (None, None) => "-",
        };
        let (passed, failed, skipped) = (self.passed(), self.failed(), self.left_out());
        let failed = if failed == 0 { "0".to_string() } else { format!("{failed} !") };
        let time = if self.skipped.is_some() { String::new() } else { format!("{:.1}", self.seconds) };
        columns(self.target, self.config, built, [&passed.to_string(), &failed, &skipped.to_string(), &time])
            + &self.longest()
    }
}

fn columns(target: &str, config: &str, built: &str, [passed, failed, skipped, seconds]: [&str; 4]) -> String {
    format!("{target:<18} {config:<14} {built:<8} {passed:>6} {failed:>6} {skipped:>7} {seconds:>8}  ")
}

pub fn print_table(rows: &[Row], elapsed: f64) {
    println!(
        "\n{}where the seconds went",
        columns("target", "config", "built", ["passed", "failed", "skipped", "seconds"])
    );
    rows.iter().for_each(|row| println!("{}", row.line().trim_end()));
    let sum = |count: fn(&Row) -> usize| rows.iter().map(count).sum::<usize>().to_string();
    let (passed, failed, left_out) = (sum(Row::passed), sum(Row::failed), sum(Row::left_out));
    println!("{}", columns("total", "", "", [&passed, &failed, &left_out, &format!("{elapsed:.1}")]).trim_end());
    print_skipped(rows);
}

/// The last line. A target that could not run here counts as one that was skipped, as a test does.
pub fn summary(rows: &[Row]) -> String {
    let sum = |count: fn(&Row) -> usize| rows.iter().map(count).sum::<usize>();
    let skipped = sum(Row::left_out) + rows.iter().filter(|row| row.skipped.is_some()).count();
    format!("{} passed, {} failed, {skipped} skipped", sum(Row::passed), sum(Row::failed))
}

/// Each test that was left out, by its reason, and each target.
fn print_skipped(rows: &[Row]) {
    let mut reasons: Vec<(String, Vec<String>)> = Vec::new();
    let mut note = |reason: &str, what: String| match reasons.iter_mut().find(|(known, _)| known == reason) {
        Some((_, names)) => names.push(what),
        None => reasons.push((reason.to_string(), vec![what])),
    };
    for row in rows {
        if let Some(reason) = &row.skipped {
            note(reason, row.label());
        }
        for test in &row.tests {
            if let Verdict::Skipped(reason) = &test.verdict {
                note(reason, format!("{} {}", row.label(), test.name));
            }
        }
    }
    if !reasons.is_empty() {
        println!("\nskipped:");
    }
    for (reason, names) in reasons {
        println!("  {reason}:\n    {}", names.join(", "));
    }
}

pub fn print_failures(rows: &[Row]) {
    for row in rows {
        if let Some(error) = &row.error {
            println!("\n==== FAILED {}\n{error}", row.label());
        }
        for test in &row.tests {
            if let Verdict::Failed(output) = &test.verdict {
                println!("\n==== FAILED {} {}\n{output}", row.label(), test.name);
            }
        }
    }
}

pub fn write_json(rows: &[Row], elapsed: f64, path: &Path) -> Result<()> {
    #[derive(Serialize)]
    struct Document<'a> {
        seconds: f64,
        passed: usize,
        failed: usize,
        rows: &'a [Row],
    }
    let (passed, failed) = (rows.iter().map(Row::passed).sum(), rows.iter().map(Row::failed).sum());
    let text = serde_json::to_string_pretty(&Document { seconds: elapsed, passed, failed, rows })?;
    std::fs::write(path, text + "\n").with_context(|| format!("{}: cannot be written", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row() -> Row {
        let test = |name: &str, seconds, verdict| Test { name: name.into(), seconds, verdict };
        let mut row = Row::new("linux-x", "release-on");
        row.built = Some(true);
        (row.build_seconds, row.seconds) = (10.0, 50.0);
        row.tests = vec![
            test("a", 1.0, Verdict::Passed(1)),
            test("b", 38.0, Verdict::Failed("boom".into())),
            test("c", 1.0, Verdict::Skipped("no".into())),
        ];
        row
    }

    #[test]
    fn a_row_counts_its_tests_and_says_where_the_time_went() {
        let row = row();
        assert_eq!((row.passed(), row.failed(), row.left_out()), (1, 1, 1));
        assert_eq!(row.longest(), "b 38, build 10");
        assert!(row.line().contains("1 !"), "{}", row.line());
    }

    #[test]
    fn the_last_line_counts_targets_that_could_not_run() {
        let mut absent = Row::new("linux-y", "release-on");
        absent.skipped = Some("needs a tool".into());
        assert_eq!(summary(&[row(), absent]), "1 passed, 1 failed, 2 skipped");
    }

    #[test]
    fn an_error_counts_as_a_failure() {
        let mut row = Row::new("x", "y");
        row.error = Some("cannot be built".into());
        assert_eq!(row.failed(), 1);
    }

    #[test]
    fn json_names_each_test_with_its_verdict() {
        let json = serde_json::to_value(row()).unwrap();
        assert_eq!(json["tests"][1]["verdict"], "failed");
        assert_eq!(json["tests"][1]["detail"], "boom");
    }
}
