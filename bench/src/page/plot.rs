//! Drawings as SVG, by plotters. Their colours are the light ones; the page's style sheet gives each
//! of them its dark counterpart.

use std::error::Error;
use std::fmt::Write as _;

use plotters::coord::Shift;
use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::figures::{Drawing, Figure, Heat, Line, Scales, Values};
use super::flame;
use super::names;
use super::text::{allowed, cut};

type Drawn = Result<(), Box<dyn Error>>;
type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Light and dark: text, grid and intervals, bars of others, then Adit and the lines of curves.
pub(super) const INK: (RGBColor, &str) = (RGBColor(0x22, 0x22, 0x22), "#e4e4e4");
pub(super) const GRID: (RGBColor, &str) = (RGBColor(0x77, 0x77, 0x77), "#999999");
pub(super) const OTHER: (RGBColor, &str) = (RGBColor(0x77, 0x88, 0x99), "#66788a");
pub(super) const LINES: [(RGBColor, &str); 8] = [
    (RGBColor(0x00, 0x66, 0xAA), "#55bbff"),
    (RGBColor(0xBB, 0x55, 0x00), "#ff9944"),
    (RGBColor(0x11, 0x77, 0x33), "#55cc77"),
    (RGBColor(0x99, 0x33, 0x88), "#dd88cc"),
    (RGBColor(0x88, 0x66, 0x00), "#ddbb33"),
    (RGBColor(0xAA, 0x22, 0x33), "#ff7788"),
    (RGBColor(0x33, 0x77, 0x88), "#77ccdd"),
    (RGBColor(0x55, 0x55, 0x55), "#bbbbbb"),
];

/// Narrow, so that its letters can be read on a telephone, too.
pub(super) const WIDTH: u32 = 460;
const FONT: i32 = 18;
const ROW: i32 = 30;
const CURVES_HEIGHT: u32 = 240;
/// Left of the bars, for names; right of them, for values.
const NAMES: i32 = 170;
const VALUES: i32 = 80;

/// The rules that give each colour of the drawings its dark counterpart.
pub(super) fn dark() -> String {
    let mut rules = String::new();
    for (light, in_the_dark) in [INK, GRID, OTHER].into_iter().chain(LINES) {
        let light = hex(light);
        for what in ["fill", "stroke"] {
            let _ = writeln!(
                rules,
                "svg [{what}=\"{light}\"] {{ {what}: {in_the_dark}; }}"
            );
        }
    }
    rules
}

/// A colour as SVG has it.
pub(super) fn hex(RGBColor(red, green, blue): RGBColor) -> String {
    format!("#{red:02X}{green:02X}{blue:02X}")
}

/// The figure as an SVG element, of this width but for flame graphs, and its height.
pub(super) fn svg(figure: &Figure, width: u32) -> Result<(String, u32), Box<dyn Error>> {
    let draw = |height: u32, on: &dyn Fn(&Area<'_>) -> Drawn| {
        let mut text = String::new();
        let area = SVGBackend::with_string(&mut text, (width, height)).into_drawing_area();
        on(&area)?;
        area.present()?;
        drop(area);
        Ok((lean(&text), height))
    };
    match &figure.drawing {
        Drawing::Bars(bars) => {
            let height = u32::try_from(bars.len())? * ROW.unsigned_abs();
            draw(height, &|area| draw_bars(area, bars))
        }
        Drawing::Curves {
            axis,
            lines,
            scales,
        } => {
            let height = CURVES_HEIGHT + legend(lines);
            draw(height, &|area| draw_curves(area, axis, lines, *scales))
        }
        Drawing::Heat(heat) => {
            let height = heat_row(heat) * u32::try_from(heat.rows.len())? + BELOW;
            draw(height, &|area| draw_heat(area, heat))
        }
        Drawing::Flame(folded) => flame::svg(folded),
    }
}

/// The SVG without empty texts, default attributes, and what the style sheet says.
fn lean(svg: &str) -> String {
    let mut texts = svg.split("<text ");
    let mut lean = texts.next().unwrap_or_default().to_owned();
    for text in texts {
        match text.split_once(">\n\n</text>\n") {
            Some((attributes, after)) if !attributes.contains('>') => lean += after,
            _ => lean = lean + "<text " + text,
        }
    }
    for said in [" opacity=\"1\"", " font-family=\"sans-serif\""] {
        lean = lean.replace(said, "");
    }
    lean.replace("14.516129032258064", "14.5")
        .replace(">\n", ">")
        .replace("\n</text>", "</text>\n")
}

/// The width of an area in pixels.
fn width(area: &Area<'_>) -> i32 {
    i32::try_from(area.dim_in_pixel().0).unwrap_or(i32::MAX)
}

fn style(colour: RGBColor, horizontal: HPos) -> TextStyle<'static> {
    let font = ("sans-serif", FONT).into_font().color(&colour);
    font.pos(Pos::new(horizontal, VPos::Center))
}

/// A row each: name, bar, interval, value.
fn draw_bars(area: &Area<'_>, bars: &[(String, Values)]) -> Drawn {
    let longest = bars
        .iter()
        .map(|(_, values)| values.max)
        .fold(0.0, f64::max);
    let width = f64::from(width(area) - NAMES - VALUES);
    #[expect(clippy::cast_possible_truncation, reason = "between 0 and the width")]
    let x = |value: f64| {
        let share = if longest > 0.0 { value / longest } else { 0.0 };
        NAMES + (share.clamp(0.0, 1.0) * width).round() as i32
    };
    for (row, (name, values)) in (0..).zip(bars) {
        let top = row * ROW;
        let middle = top + ROW / 2;
        let colour = if is_ours(name) { LINES[0].0 } else { OTHER.0 };
        let bar = [(NAMES, top + 6), (x(values.median), top + ROW - 6)];
        area.draw(&Rectangle::new(bar, colour.filled()))?;
        let (from, to) = (x(values.min), x(values.max));
        let ends = [from, to].map(|x| [(x, middle - 4), (x, middle + 4)]);
        for line in [[(from, middle), (to, middle)], ends[0], ends[1]] {
            area.draw(&PathElement::new(line.to_vec(), INK.0.stroke_width(1)))?;
        }
        let name = Text::new(short(name), (NAMES - 6, middle), style(INK.0, HPos::Right));
        area.draw(&name)?;
        let at = (to + 6, middle);
        area.draw(&Text::new(
            number(values.median),
            at,
            style(INK.0, HPos::Left),
        ))?;
    }
    Ok(())
}

/// Adit, or a step of the ablation.
fn is_ours(name: &str) -> bool {
    name == "adit" || name.starts_with("sized-frames")
}

/// plotters escapes the others.
fn short(name: &str) -> String {
    cut(name, 22).chars().map(allowed).collect()
}

/// Three significant digits.
pub(super) fn number(value: f64) -> String {
    match value.abs() {
        v if v >= 99.95 || v == 0.0 => format!("{value:.0}"),
        v if v >= 9.995 => format!("{value:.1}"),
        v if v >= 0.9995 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// A place on an axis: a number of flows or of octets has no decimals.
pub(super) fn place(at: f64) -> String {
    match at.fract() == 0.0 {
        true => format!("{at:.0}"),
        false => number(at),
    }
}

/// Below a heat map: its places, and what they are.
const BELOW: u32 = 48;
/// Left of it, for names.
const HEAT_NAMES: i32 = 190;

/// Rows of many cores are low.
fn heat_row(heat: &Heat) -> u32 {
    if heat.rows.len() > 16 { 9 } else { 24 }
}

/// A field for each place and row, the stronger the busier.
fn draw_heat(area: &Area<'_>, heat: &Heat) -> Drawn {
    let row_height = i32::try_from(heat_row(heat))?;
    let columns = i32::try_from(heat.places.len().max(1))?;
    let column = (width(area) - HEAT_NAMES) / columns;
    let text =
        |text: String, at: (i32, i32), to: HPos| area.draw(&Text::new(text, at, style(INK.0, to)));
    // Where rows are lower than letters, some have names.
    let named = (FONT + row_height - 1) / row_height;
    for (row, (name, shares)) in (0..).zip(&heat.rows) {
        let top = row * row_height;
        if row % named == 0 {
            let at = (HEAT_NAMES - 6, top + row_height.max(FONT) / 2);
            text(short(name), at, HPos::Right)?;
        }
        for (place, share) in (0..).zip(shares) {
            let Some(share) = share else { continue };
            let left = HEAT_NAMES + place * column;
            let field = [(left, top), (left + column - 2, top + row_height - 1)];
            let colour = LINES[0].0.mix(share.clamp(0.03, 1.0));
            area.draw(&Rectangle::new(field, colour.filled()))?;
        }
    }
    let bottom = row_height * i32::try_from(heat.rows.len())?;
    for (index, at) in (0..).zip(&heat.places) {
        let middle = HEAT_NAMES + index * column + column / 2;
        text(place(*at), (middle, bottom + 12), HPos::Center)?;
    }
    let middle = HEAT_NAMES + columns * column / 2;
    Ok(text(
        short(&heat.axis),
        (middle, bottom + 34),
        HPos::Center,
    )?)
}

const LEGEND_ROW: u32 = 20;

fn legend(lines: &[Line]) -> u32 {
    u32::try_from(lines.len().div_ceil(2)).map_or(0, |rows| (rows + 1) * LEGEND_ROW)
}

/// Where any of the lines has a point, in rising order.
pub(super) fn places(lines: &[Line]) -> Vec<f64> {
    let points = lines.iter().flat_map(|line| &line.points);
    let mut all: Vec<f64> = points.map(|(at, _)| *at).collect();
    all.sort_by(f64::total_cmp);
    all.dedup();
    all
}

/// Lines with their colours. The link without a tunnel is grey as the axes are.
fn coloured(lines: &[Line]) -> impl Iterator<Item = (&Line, RGBColor)> {
    let colours = LINES.iter().cycle().map(|(colour, _)| *colour);
    lines
        .iter()
        .zip(colours)
        .map(|(line, colour)| match line.name.as_str() {
            names::LINK => (line, GRID.0),
            _ => (line, colour),
        })
}

/// Lines over an axis, with intervals, and below them which is whose.
fn draw_curves(area: &Area<'_>, axis: &str, lines: &[Line], scales: Scales) -> Drawn {
    let points = || lines.iter().flat_map(|line| &line.points);
    let least = points().map(|(at, _)| *at).fold(f64::INFINITY, f64::min);
    let most = points().map(|(at, _)| *at).fold(least, f64::max);
    let lowest = points().map(|(_, values)| values.min);
    let lowest = lowest.filter(|value| *value > 0.0);
    let lowest = lowest.fold(f64::INFINITY, f64::min);
    let highest = points().map(|(_, values)| values.max).fold(0.0, f64::max);
    let x = least..most.max(least * 1.01);
    let above_zero = 0.0..highest.max(f64::MIN_POSITIVE) * 1.05;
    let y = lowest..highest.max(lowest * 1.01);
    match scales {
        Scales::LogX => draw_lines(area, axis, lines, (x.log_scale(), above_zero, 0.0)),
        Scales::LogY => draw_lines(area, axis, lines, (x, y.log_scale(), lowest)),
        Scales::LogBoth => draw_lines(area, axis, lines, (x.log_scale(), y.log_scale(), lowest)),
    }
}

/// The lines between axes of these ranges; the last one is where the vertical one begins.
fn draw_lines<X, Y>(
    area: &Area<'_>,
    axis: &str,
    lines: &[Line],
    (across, up, bottom): (X, Y, f64),
) -> Drawn
where
    X: AsRangedCoord<Value = f64>,
    Y: AsRangedCoord<Value = f64>,
    X::CoordDescType: ValueFormatter<f64>,
    Y::CoordDescType: ValueFormatter<f64>,
{
    let (upper, lower) = area.split_vertically(CURVES_HEIGHT);
    let mut chart = ChartBuilder::on(&upper)
        .margin_right(26)
        .margin_top(8)
        .set_label_area_size(LabelAreaPosition::Left, 56)
        .set_label_area_size(LabelAreaPosition::Bottom, 44)
        .build_cartesian_2d(across, up)?;
    let font = ("sans-serif", FONT).into_font().color(&INK.0);
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(0)
        .x_label_formatter(&|_| String::new())
        .y_labels(5)
        .y_label_formatter(&|y| number(*y))
        .label_style(font.clone())
        .axis_desc_style(font)
        .axis_style(GRID.0)
        .bold_line_style(GRID.0.mix(0.3))
        .light_line_style(TRANSPARENT)
        .draw()?;
    let below = i32::try_from(CURVES_HEIGHT)?;
    let mut free = 0;
    for at in places(lines) {
        let (x, _) = chart.backend_coord(&(at, bottom));
        let text = place(at);
        let half = i32::try_from(text.len())? * FONT / 4 + 2;
        // Where there is no room for all, some have none.
        if x - half >= free {
            free = x + half;
            let at = (x, below - 34);
            upper.draw(&Text::new(text, at, style(INK.0, HPos::Center)))?;
        }
    }
    let middle = (width(area) / 2, below - 12);
    let axis = Text::new(short(axis), middle, style(INK.0, HPos::Center));
    upper.draw(&axis)?;
    for (line, colour) in coloured(lines) {
        let medians = line.points.iter().map(|(at, values)| (*at, values.median));
        chart.draw_series(LineSeries::new(medians, colour.stroke_width(2)))?;
        let intervals = line.points.iter().map(|(at, values)| {
            let ends = vec![(*at, values.min), (*at, values.max)];
            PathElement::new(ends, colour.stroke_width(1))
        });
        chart.draw_series(intervals)?;
    }
    for (index, (line, colour)) in coloured(lines).enumerate() {
        let index = i32::try_from(index)?;
        let x = 12 + index % 2 * width(area) / 2;
        let y = 12 + index / 2 * i32::try_from(LEGEND_ROW)?;
        let stroke = colour.stroke_width(3);
        lower.draw(&PathElement::new(vec![(x, y), (x + 18, y)], stroke))?;
        let name = Text::new(
            short(names::real(&line.name)),
            (x + 24, y),
            style(INK.0, HPos::Left),
        );
        lower.draw(&name)?;
    }
    Ok(())
}
