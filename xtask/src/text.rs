//! A text file as lines that keep their own end of line, so that what is not edited keeps its bytes.

use std::ops::Range;

/// `"\n"`, `"\r\n"`, or empty for a last line without one.
pub type Eol = &'static str;

#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    pub text: String,
    pub eol: Eol,
}

pub fn split(text: &str) -> Vec<Line> {
    text.split_inclusive('\n').map(split_line).collect()
}

pub fn join(lines: &[Line]) -> String {
    lines.iter().flat_map(|line| [line.text.as_str(), line.eol]).collect()
}

fn split_line(line: &str) -> Line {
    let eol = match line {
        _ if line.ends_with("\r\n") => "\r\n",
        _ if line.ends_with('\n') => "\n",
        _ => "",
    };
    Line { text: line[..line.len() - eol.len()].to_string(), eol }
}

/// The end of line that a file uses: its first one.
pub fn default_eol(lines: &[Line]) -> Eol {
    lines.first().map(|line| line.eol).filter(|eol| !eol.is_empty()).unwrap_or("\n")
}

pub fn indent(line: &str) -> &str {
    &line[..line.len() - line.trim_start().len()]
}

/// Dice's coefficient over letter pairs: 1 for equal texts, 0 for nothing in common.
pub fn similarity(a: &str, b: &str) -> f64 {
    let (pairs_a, mut pairs_b) = (pairs(a), pairs(b));
    let total = pairs_a.len() + pairs_b.len();
    let shared = pairs_a.iter().filter(|pair| take(&mut pairs_b, pair)).count();
    if total == 0 {
        0.0
    } else {
        2.0 * shared as f64 / total as f64
    }
}

fn pairs(text: &str) -> Vec<(char, char)> {
    let letters: Vec<char> = text.chars().filter(|c| !c.is_whitespace()).collect();
    letters.windows(2).map(|pair| (pair[0], pair[1])).collect()
}

fn take(pairs: &mut Vec<(char, char)>, wanted: &(char, char)) -> bool {
    let found = pairs.iter().position(|pair| pair == wanted);
    found.map(|index| pairs.swap_remove(index)).is_some()
}

/// Two texts in two columns, with equal lines beside each other. Lines that differ are marked `!`.
pub fn side_by_side(left: &[String], right: &[String]) -> String {
    const WIDTH: usize = 76;
    let column = |line: Option<usize>, text: &[String]| line.map_or(String::new(), |at| text[at].clone());
    let mut table = String::new();
    for (a, b) in aligned(left, right) {
        let mark = if a.is_some() && b.is_some() && column(a, left) == column(b, right) { ' ' } else { '!' };
        let shown: String = column(a, left).chars().take(WIDTH).collect();
        table += &format!("  {mark} {shown:<WIDTH$} | {}", column(b, right));
        table.truncate(table.trim_end().len());
        table.push('\n');
    }
    table
}

/// Pairs of line numbers: a longest common subsequence, and between its lines what is left, side by side.
fn aligned(left: &[String], right: &[String]) -> Vec<(Option<usize>, Option<usize>)> {
    // common[i][j]: how many lines left[i..] and right[j..] have in common
    let mut common = vec![vec![0; right.len() + 1]; left.len() + 1];
    for i in (0..left.len()).rev() {
        for j in (0..right.len()).rev() {
            let skipped = common[i + 1][j].max(common[i][j + 1]);
            common[i][j] = if left[i] == right[j] { common[i + 1][j + 1] + 1 } else { skipped };
        }
    }
    let (mut i, mut j) = (0, 0);
    let mut rows = Vec::new();
    let mut gap = (0, 0);
    while i < left.len() || j < right.len() {
        if i < left.len() && j < right.len() && left[i] == right[j] {
            fill(&mut rows, gap.0..i, gap.1..j);
            rows.push((Some(i), Some(j)));
            (i, j) = (i + 1, j + 1);
            gap = (i, j);
        } else if j == right.len() || (i < left.len() && common[i + 1][j] >= common[i][j + 1]) {
            i += 1;
        } else {
            j += 1;
        }
    }
    fill(&mut rows, gap.0..i, gap.1..j);
    rows
}

fn fill(rows: &mut Vec<(Option<usize>, Option<usize>)>, mut left: Range<usize>, mut right: Range<usize>) {
    while !left.is_empty() || !right.is_empty() {
        rows.push((left.next(), right.next()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splitting_and_joining_keeps_every_byte() {
        for text in ["", "a", "a\n", "a\r\nb\n\n c \r\nd", "\n\n"] {
            assert_eq!(join(&split(text)), text);
        }
    }

    #[test]
    fn equal_lines_stand_beside_each_other() {
        let lines = |text: &str| text.split(' ').map(str::to_string).collect::<Vec<_>>();
        let rows = aligned(&lines("a b c d"), &lines("a x c y d"));
        let some = |a, b| (Some(a), Some(b));
        assert_eq!(rows, [some(0, 0), some(1, 1), some(2, 2), (None, Some(3)), some(3, 4)]);
        let table = side_by_side(&lines("a b c"), &lines("a c"));
        let shape = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
        assert_eq!(shape.collect::<Vec<_>>(), ["a | a", "! b |", "c | c"]);
    }

    #[test]
    fn similar_texts_rank_above_others() {
        let near = similarity("mi_track_malloc(p,size,zero);", "mi_track_malloc(p, size, false);");
        assert!(near > similarity("mi_track_malloc(p,size,zero);", "return p;"));
        assert_eq!(similarity("abc", "abc"), 1.0);
    }
}
