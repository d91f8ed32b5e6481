//! A text file as lines that keep their own end of line, so that what is not edited keeps its bytes.

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
    fn similar_texts_rank_above_others() {
        let near = similarity("mi_track_malloc(p,size,zero);", "mi_track_malloc(p, size, false);");
        assert!(near > similarity("mi_track_malloc(p,size,zero);", "return p;"));
        assert_eq!(similarity("abc", "abc"), 1.0);
    }
}
