//! Guarded regions: how inserted lines are marked in an upstream file, and how they are found and dropped again.
//! Dropping every region gives the pristine file back, byte for byte.

use crate::text::{self, Eol, Line};
use anyhow::{bail, ensure, Result};

pub const GUARD: &str = "MI_PPROF";
const BEGIN: &str = "# mi_prof begin";
const END: &str = "# mi_prof end";
const REPLACED: &str = "# mi_prof was: ";

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Syntax {
    /// `#if MI_PPROF … #else (replaced lines) … #endif`
    C,
    /// Two marker comments; replaced lines stay between them as comments (CMake, pkg-config).
    Marker,
}

/// A region as found in a file.
#[derive(Clone, Debug, PartialEq)]
pub struct Region {
    /// The pristine line (from 0) before which it stands.
    pub position: usize,
    pub lines: Vec<String>,
}

pub struct Dropped {
    pub lines: Vec<Line>,
    pub regions: Vec<Region>,
    /// For each pristine line, its number (from 1) in the file with regions.
    pub numbers: Vec<usize>,
}

impl Syntax {
    pub fn of(file: &str) -> Option<Syntax> {
        let name = file.rsplit('/').next().unwrap_or(file);
        match name.rsplit('.').next() {
            Some("c" | "h" | "cpp" | "hpp" | "cc") => Some(Syntax::C),
            Some("cmake") => Some(Syntax::Marker),
            Some("in") if name.ends_with(".pc.in") => Some(Syntax::Marker),
            _ => (name == "CMakeLists.txt").then_some(Syntax::Marker),
        }
    }

    fn opens(self, line: &str) -> bool {
        match self {
            Syntax::C => directive(line).is_some_and(|(word, rest)| word.starts_with("if") && rest.contains(GUARD)),
            Syntax::Marker => line.trim() == BEGIN,
        }
    }
}

/// The lines of a region around `code`, with `replaced` kept for the day when the region is dropped.
pub fn render(syntax: Syntax, guard: &str, indent: &str, code: Vec<Line>, replaced: &[Line], eol: Eol) -> Vec<Line> {
    let own = |text: &str| Line { text: format!("{indent}{text}"), eol };
    let kept = |prefix: &str| -> Vec<Line> {
        replaced.iter().map(|line| Line { text: format!("{prefix}{}", line.text), eol: line.eol }).collect()
    };
    match syntax {
        Syntax::C if replaced.is_empty() => [vec![own(&format!("#if {guard}"))], code, vec![own("#endif")]].concat(),
        Syntax::C => {
            let opening = vec![own(&format!("#if {guard}"))];
            [opening, code, vec![own("#else")], kept(""), vec![own("#endif")]].concat()
        }
        Syntax::Marker => [vec![own(BEGIN)], kept(REPLACED), code, vec![own(END)]].concat(),
    }
}

pub fn drop_regions(source: &str, syntax: Syntax) -> Result<Dropped> {
    let lines = text::split(source);
    let mut dropped = Dropped { lines: Vec::new(), regions: Vec::new(), numbers: Vec::new() };
    let mut at = 0;
    while at < lines.len() {
        if syntax.opens(&lines[at].text) {
            let end = region_end(&lines, at, syntax)?;
            ensure_left_out(&lines[at..=end], at, syntax)?;
            drop_region(&mut dropped, &lines[at..=end], at, syntax);
            at = end + 1;
        } else {
            dropped.keep(lines[at].clone(), at);
            at += 1;
        }
    }
    Ok(dropped)
}

impl Dropped {
    fn keep(&mut self, line: Line, index: usize) {
        self.lines.push(line);
        self.numbers.push(index + 1);
    }
}

fn drop_region(dropped: &mut Dropped, region: &[Line], first: usize, syntax: Syntax) {
    dropped
        .regions
        .push(Region { position: dropped.lines.len(), lines: region.iter().map(|line| line.text.clone()).collect() });
    for (offset, line) in replaced_lines(region, syntax) {
        dropped.keep(line, first + offset);
    }
    // The pristine file ended without an end of line: the region took over that place.
    if region.last().is_some_and(|line| line.eol.is_empty()) {
        if let Some(line) = dropped.lines.last_mut() {
            line.eol = "";
        }
    }
}

/// Whether lines with this condition are gone when `MI_PPROF` is 0, whatever else is defined.
pub fn is_off_without_guard(condition: &str) -> bool {
    let rest = condition.trim().strip_prefix(GUARD).map(str::trim_start);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with("&&") && !rest.contains("||") && !rest.contains('?'))
}

/// Upstream's lines after `#else` are what a build without the profiler sees, and nothing else.
fn ensure_left_out(region: &[Line], first: usize, syntax: Syntax) -> Result<()> {
    let Some((word, condition)) = directive(&region[0].text).filter(|_| syntax == Syntax::C) else { return Ok(()) };
    let is_off = word == "if" && is_off_without_guard(condition);
    ensure!(is_off, "line {}: '{}' is not off when {GUARD} is 0", first + 1, region[0].text.trim());
    let elif = outermost(region, "elif");
    ensure!(elif.is_none(), "line {}: a region has one condition, and no #elif", first + 1);
    Ok(())
}

fn replaced_lines(region: &[Line], syntax: Syntax) -> Vec<(usize, Line)> {
    let inner = 1..region.len() - 1;
    match syntax {
        Syntax::Marker => inner
            .filter_map(|i| {
                let text = region[i].text.strip_prefix(REPLACED)?.to_string();
                Some((i, Line { text, eol: region[i].eol }))
            })
            .collect(),
        Syntax::C => {
            let first = outermost(region, "else").map_or(inner.end, |at| at + 1);
            (first..inner.end).map(|i| (i, region[i].clone())).collect()
        }
    }
}

/// Where a directive belongs to the outermost `#if` of a C region.
fn outermost(region: &[Line], word: &str) -> Option<usize> {
    let mut depth = 0;
    region.iter().position(|line| {
        let found = directive(&line.text).map_or("", |(word, _)| word);
        depth += nesting(found);
        depth == 1 && found == word
    })
}

fn region_end(lines: &[Line], first: usize, syntax: Syntax) -> Result<usize> {
    let mut depth = 0;
    for (at, line) in lines.iter().enumerate().skip(first) {
        let closes = match syntax {
            Syntax::Marker => line.text.trim() == END,
            Syntax::C => {
                depth += nesting(directive(&line.text).map_or("", |(word, _)| word));
                depth == 0
            }
        };
        if closes {
            return Ok(at);
        }
    }
    bail!("line {}: the region that begins here has no end", first + 1)
}

fn nesting(word: &str) -> i32 {
    match word {
        "if" | "ifdef" | "ifndef" => 1,
        "endif" => -1,
        _ => 0,
    }
}

/// `  # if X` → `("if", " X")`
fn directive(line: &str) -> Option<(&str, &str)> {
    let rest = line.trim_start().strip_prefix('#')?.trim_start();
    Some(rest.split_at(rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(rest.len())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nested_conditionals_belong_to_the_region() {
        let source = "a\n#if MI_PPROF\n#if X\nb\n#else\nc\n#endif\n#else\nd\n#endif\ne\n";
        let dropped = drop_regions(source, Syntax::C).unwrap();
        assert_eq!(text::join(&dropped.lines), "a\nd\ne\n");
        assert_eq!(dropped.numbers, [1, 9, 11]);
        assert_eq!(dropped.regions[0].position, 1);
    }

    #[test]
    fn a_region_that_stays_without_the_profiler_is_an_error() {
        for condition in ["if !MI_PPROF", "ifdef MI_PPROF", "if MI_PPROF || X", "if X && MI_PPROF", "if MI_PPROF == 0"]
        {
            assert!(drop_regions(&format!("#{condition}\nb\n#endif\n"), Syntax::C).is_err(), "{condition}");
        }
        assert!(drop_regions("#if MI_PPROF\nb\n#elif X\nc\n#endif\n", Syntax::C).is_err());
        assert!(drop_regions("#if MI_PPROF && X\nb\n#endif\n", Syntax::C).is_ok());
    }

    #[test]
    fn other_conditionals_are_kept() {
        let source = "#if MI_DEBUG\na\n#endif\n#ifdef X\n#endif\n";
        assert_eq!(text::join(&drop_regions(source, Syntax::C).unwrap().lines), source);
    }

    #[test]
    fn a_region_without_end_is_an_error() {
        assert!(drop_regions("#if MI_PPROF\na\n", Syntax::C).is_err());
        assert!(drop_regions("# mi_prof begin\n", Syntax::Marker).is_err());
    }

    #[test]
    fn marker_regions_give_replaced_lines_back() {
        let source = "x\n# mi_prof begin\n# mi_prof was:   old(1)\nnew(1)\n# mi_prof end\r\ny";
        assert_eq!(text::join(&drop_regions(source, Syntax::Marker).unwrap().lines), "x\n  old(1)\ny");
    }

    #[test]
    fn syntax_follows_the_name() {
        assert_eq!(Syntax::of("src/alloc.c"), Some(Syntax::C));
        assert_eq!(Syntax::of("CMakeLists.txt"), Some(Syntax::Marker));
        assert_eq!(Syntax::of("mimalloc.pc.in"), Some(Syntax::Marker));
        assert_eq!(Syntax::of("readme.md"), None);
    }
}
