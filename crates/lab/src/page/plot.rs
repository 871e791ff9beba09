//! Drawings as SVG, by plotters. Their colours are the light ones; the page's style sheet gives each
//! of them its dark counterpart.

use std::error::Error;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::figures::{Drawing, Figure, Line, Values};

type Drawn = Result<(), Box<dyn Error>>;
type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Light and dark: text, grid and intervals, bars of others, then Adit and the lines of curves.
pub(super) const INK: (RGBColor, &str) = (RGBColor(0x22, 0x22, 0x22), "#e4e4e4");
pub(super) const GRID: (RGBColor, &str) = (RGBColor(0x77, 0x77, 0x77), "#999999");
pub(super) const OTHER: (RGBColor, &str) = (RGBColor(0x99, 0xAA, 0xBB), "#556677");
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
const WIDTH: u32 = 460;
const FONT: i32 = 18;
const ROW: i32 = 30;
const CURVES_HEIGHT: u32 = 240;
/// Left of the bars, for names; right of them, for values.
const NAMES: i32 = 170;
const VALUES: i32 = 80;

/// The figure as an SVG element.
pub(super) fn svg(figure: &Figure) -> Result<String, Box<dyn Error>> {
    let mut text = String::new();
    let height = match &figure.drawing {
        Drawing::Bars(bars) => u32::try_from(bars.len())? * ROW.unsigned_abs(),
        Drawing::Curves { lines, .. } => CURVES_HEIGHT + legend(lines),
    };
    let area = SVGBackend::with_string(&mut text, (WIDTH, height)).into_drawing_area();
    match &figure.drawing {
        Drawing::Bars(bars) => draw_bars(&area, bars)?,
        Drawing::Curves { axis, lines } => draw_curves(&area, axis, lines)?,
    }
    area.present()?;
    drop(area);
    Ok(text)
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
    let width = f64::from(i32::try_from(WIDTH)? - NAMES - VALUES);
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

fn short(name: &str) -> String {
    const MOST: usize = 21;
    match name.char_indices().nth(MOST) {
        Some((at, _)) => format!("{}…", &name[..at]),
        None => name.to_owned(),
    }
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

const LEGEND_ROW: u32 = 20;

fn legend(lines: &[Line]) -> u32 {
    u32::try_from(lines.len().div_ceil(2)).map_or(0, |rows| (rows + 1) * LEGEND_ROW)
}

/// Lines over a logarithmic axis, with intervals, and below them which is whose.
fn draw_curves(area: &Area<'_>, axis: &str, lines: &[Line]) -> Drawn {
    let points = || lines.iter().flat_map(|line| &line.points);
    let least = points().map(|(at, _)| *at).fold(f64::INFINITY, f64::min);
    let most = points().map(|(at, _)| *at).fold(least, f64::max);
    let highest = points().map(|(_, values)| values.max).fold(0.0, f64::max);
    let (upper, lower) = area.split_vertically(CURVES_HEIGHT);
    let mut chart = ChartBuilder::on(&upper)
        .margin_right(16)
        .margin_top(8)
        .set_label_area_size(LabelAreaPosition::Left, 56)
        .set_label_area_size(LabelAreaPosition::Bottom, 44)
        .build_cartesian_2d(
            (least..most.max(least * 1.01)).log_scale(),
            0.0..highest.max(f64::MIN_POSITIVE) * 1.05,
        )?;
    let font = ("sans-serif", FONT).into_font().color(&INK.0);
    chart
        .configure_mesh()
        .x_desc(axis)
        .x_labels(6)
        .y_labels(5)
        .x_label_formatter(&|x| number(*x))
        .y_label_formatter(&|y| number(*y))
        .label_style(font.clone())
        .axis_desc_style(font)
        .axis_style(GRID.0)
        .bold_line_style(GRID.0.mix(0.3))
        .light_line_style(TRANSPARENT)
        .draw()?;
    for (line, (colour, _)) in lines.iter().zip(LINES.iter().cycle()) {
        let medians = line.points.iter().map(|(at, values)| (*at, values.median));
        chart.draw_series(LineSeries::new(medians, colour.stroke_width(2)))?;
        let intervals = line.points.iter().map(|(at, values)| {
            let ends = vec![(*at, values.min), (*at, values.max)];
            PathElement::new(ends, colour.stroke_width(1))
        });
        chart.draw_series(intervals)?;
    }
    for (index, (line, (colour, _))) in lines.iter().zip(LINES.iter().cycle()).enumerate() {
        let index = i32::try_from(index)?;
        let x = 12 + index % 2 * i32::try_from(WIDTH)? / 2;
        let y = 12 + index / 2 * i32::try_from(LEGEND_ROW)?;
        let stroke = colour.stroke_width(3);
        lower.draw(&PathElement::new(vec![(x, y), (x + 18, y)], stroke))?;
        let name = Text::new(short(&line.name), (x + 24, y), style(INK.0, HPos::Left));
        lower.draw(&name)?;
    }
    Ok(())
}
