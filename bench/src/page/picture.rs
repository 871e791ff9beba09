//! Figures put together to one picture that stands on any page: with a title above each, small print
//! below, a background, and a dark counterpart of each colour.

use std::error::Error;
use std::fmt::Write as _;

use super::figures::{Drawing, Figure, Values};
use super::plot::{self, number, place};
use super::text::{cut, escape, wrap};

/// What a picture has.
pub(super) struct Picture {
    pub(super) title: &'static str,
    /// Side by side.
    pub(super) columns: usize,
    /// Each with what stands above it.
    pub(super) panels: Vec<(String, Figure)>,
    /// Paragraphs below.
    pub(super) print: Vec<String>,
}

/// Pixels, of a picture that is as wide as a README.
const WIDTH: usize = 800;
const MARGIN: usize = 24;
/// Height of a panel's title, and of the free space under it.
const TITLE: usize = 30;
const GAP: usize = 20;
const PRINT_ROW: usize = 17;
/// Characters of small print in a line.
const PRINT_CHARS: usize = 118;
const TITLE_CHARS: [usize; 2] = [90, 42];

const STYLE: &str = "\
text { font-family: system-ui, -apple-system, 'Segoe UI', sans-serif; fill: #222222; }
.page { fill: #ffffff; stroke: #cccccc; }
.title { font-weight: 600; font-size: 15px; }
.print { font-size: 12px; fill: #595959; }
";
const DARK: &str = "\
text { fill: #e4e4e4; }
.page { fill: #16181b; stroke: #44484d; }
.print { fill: #a8a8a8; }
";

impl Picture {
    pub(super) fn svg(&self) -> Result<String, Box<dyn Error>> {
        let across = (WIDTH - (self.columns + 1) * MARGIN) / self.columns;
        // What is drawn side by side is made smaller, letters and all.
        let drawn = match self.columns {
            1 => u32::try_from(across)?,
            _ => plot::WIDTH,
        };
        let mut body = String::new();
        let mut y = MARGIN / 2;
        for row in self.panels.chunks(self.columns) {
            let mut tallest = 0;
            for (column, (title, figure)) in row.iter().enumerate() {
                let x = MARGIN + column * (across + MARGIN);
                let title = escape(&cut(title, TITLE_CHARS[self.columns - 1]));
                let below = y + 18;
                writeln!(
                    body,
                    "<text class=\"title\" x=\"{x}\" y=\"{below}\">{title}</text>"
                )?;
                let (svg, height) = plot::svg(figure, drawn)?;
                let scaled = usize::try_from(height)? * across / usize::try_from(drawn)?;
                let own = format!("<svg width=\"{drawn}\" height=\"{height}\"");
                let (top, height) = (y + TITLE, scaled);
                let placed =
                    format!("<svg x=\"{x}\" y=\"{top}\" width=\"{across}\" height=\"{height}\"");
                body += &svg.replacen(&own, &placed, 1);
                tallest = tallest.max(scaled);
            }
            y += TITLE + tallest + GAP;
        }
        y += PRINT_ROW - GAP / 2;
        let lines = self.print.iter();
        for line in lines.flat_map(|text| wrap(text, PRINT_CHARS)) {
            let line = escape(&line);
            writeln!(
                body,
                "<text class=\"print\" x=\"{MARGIN}\" y=\"{y}\">{line}</text>"
            )?;
            y += PRINT_ROW;
        }
        let (title, described) = (self.title, escape(&self.describe()));
        let height = y + MARGIN / 2;
        let (right, bottom) = (WIDTH - 1, height - 1);
        let dark = plot::dark();
        Ok(format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
             viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-labelledby=\"title desc\">\n\
             <title id=\"title\">{title}</title>\n<desc id=\"desc\">{described}</desc>\n\
             <style>\n{STYLE}@media (prefers-color-scheme: dark) {{\n{DARK}{dark}}}\n</style>\n\
             <rect class=\"page\" x=\"0.5\" y=\"0.5\" width=\"{right}\" height=\"{bottom}\" rx=\"6\"/>\n\
             {body}</svg>\n"
        ))
    }

    /// Its values in words, for readers who do not see it.
    fn describe(&self) -> String {
        let panels = self.panels.iter().filter_map(|(title, figure)| {
            let values = match &figure.drawing {
                Drawing::Bars(bars) => bars.iter().map(of_bar).collect::<Vec<_>>().join(", "),
                Drawing::Curves { axis, lines, .. } => {
                    let lines = lines.iter().map(|line| {
                        let points = line.points.iter();
                        let at = |(at, values): &(f64, Values)| {
                            format!("{} at {}", number(values.median), place(*at))
                        };
                        let points: Vec<String> = points.map(at).collect();
                        format!("{} {}", line.name, points.join(", "))
                    });
                    format!("by {axis}: {}", lines.collect::<Vec<_>>().join("; "))
                }
                Drawing::Heat(_) | Drawing::Flame(_) => return None,
            };
            Some(format!("{title}: {values}."))
        });
        panels.collect::<Vec<_>>().join(" ")
    }
}

fn of_bar((name, values): &(String, Values)) -> String {
    format!("{name} {}", number(values.median))
}
