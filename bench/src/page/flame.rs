//! Flame graphs as SVG, by inferno, from folded stacks.

use std::error::Error;

use inferno::flamegraph::color::{BasicPalette, Palette};
use inferno::flamegraph::{Options, from_lines};

/// Pixels; a page lets its readers scroll sideways.
const WIDTH: usize = 1200;

/// The stacks, a line each with its CPU time in nanoseconds, as an SVG element, and its height. A reader sees the whole name of a frame
/// and its share by pointing at it: inferno's script, style sheet and ids stay out of the page.
pub(super) fn svg(folded: &str) -> Result<(String, u32), Box<dyn Error>> {
    let mut options = Options::default();
    options.count_name = "ns".to_owned();
    options.deterministic = true;
    // Black letters can be read on all of its colours, as they cannot on red.
    options.colors = Palette::Basic(BasicPalette::Yellow);
    options.no_javascript = true;
    options.image_width = Some(WIDTH);
    // Narrower ones cannot be seen.
    options.min_width = 0.05;
    let mut drawn = Vec::new();
    from_lines(&mut options, folded.lines(), &mut drawn)?;
    let drawn = String::from_utf8(drawn)?;
    let height = attribute(&drawn, "height").ok_or("the flame graph has no height")?;
    let frames = drawn.split_once("<svg id=\"frames\"");
    let (_, frames) = frames.ok_or("the flame graph has no frames")?;
    let frames = frames.trim_end();
    let svg = format!(
        "<svg width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 {WIDTH} {height}\" \
         xmlns=\"http://www.w3.org/2000/svg\">\n<svg{frames}\n"
    );
    Ok((svg, height.parse()?))
}

/// The value of the first attribute of this name.
fn attribute<'a>(svg: &'a str, name: &str) -> Option<&'a str> {
    let (_, after) = svg.split_once(&format!(" {name}=\""))?;
    after.split_once('"').map(|(value, _)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_drawn_without_script_style_and_ids() {
        let folded = "adit-shard-0;main;seal<T> 30\nadit-shard-0;main;send 10\n";
        let (drawn, _) = svg(folded).unwrap();
        assert_eq!(drawn, svg(folded).unwrap().0);
        assert!(drawn.contains("seal&lt;T&gt; (30 ns, 75.00%)"), "{drawn}");
        for word in ["<script", "<style", "id=", "url(", "onload", "<!--"] {
            assert!(!drawn.contains(word), "{word}: {drawn}");
        }
        assert_eq!(drawn.matches("<svg").count(), 2);
        assert_eq!(drawn.matches("</svg>").count(), 2);
    }

    #[test]
    fn no_stacks_are_an_error() {
        svg("").unwrap_err();
    }
}
