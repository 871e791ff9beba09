//! The page: its first screen, the questions with what answers them, and the values folded below.

use std::error::Error;
use std::fmt::Write as _;

use super::figures::{ALL, Drawing, Figure, Goal, Run, Values};
use super::headline::{self, Headline, Kernel};
use super::names::{self, real};
use super::plot::{self, number, place};
use super::questions::{QUESTIONS, Question, question};
use super::text::{date, escape};
use super::values;

/// The results, and what each part of the page needs of all of them.
struct Page<'a> {
    runs: &'a [Run],
    kernels: Vec<Kernel>,
}

/// Everything in one file: nothing is loaded, and no script runs.
pub(super) fn page(runs: &[Run]) -> Result<String, Box<dyn Error>> {
    let page = Page {
        runs,
        kernels: headline::kernels(runs),
    };
    let mut questions = Vec::new();
    for of in &QUESTIONS {
        let body = page.question(of)?;
        if !body.is_empty() {
            questions.push((of, body));
        }
    }
    let answered: Vec<&Question> = questions.iter().map(|(of, _)| *of).collect();
    let first = page.first_screen(&answered);
    let questions: String = questions.into_iter().map(|(_, body)| body).collect();
    let (goals, files) = (page.goals(), page.files());
    let style = style();
    Ok(format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<link rel=\"icon\" href=\"data:,\">\n\
         <title>Adit: results</title>\n\
         <style>\n{style}</style>\n</head>\n<body>\n{first}{questions}{goals}{files}</body>\n</html>\n"
    ))
}

const STYLE: &str = include_str!("style.css");

/// The rules, and the dark counterpart of each colour of the drawings.
fn style() -> String {
    let dark = plot::dark();
    format!("{STYLE}@media (prefers-color-scheme: dark) {{\n{dark}}}\n")
}

impl Page<'_> {
    /// The first screen: how fast, beside whom, on what; then the contents.
    fn first_screen(&self, answered: &[&Question]) -> String {
        let others: Vec<String> = headline::others(self.runs)
            .into_iter()
            .map(escape)
            .collect();
        let mut text = "<header id=\"headline\">\n<h1>How fast is Adit?</h1>\n".to_owned();
        if !others.is_empty() {
            let _ = writeln!(
                text,
                "<p>Adit is a userspace WireGuard for Linux. It is measured here beside {}. Both ends of \
                 a tunnel share the cores of one machine; numbers are medians.</p>",
                sequence(&others)
            );
        }
        let cards: String = headline::headlines(self.runs).iter().map(card).collect();
        if !cards.is_empty() {
            let _ = writeln!(text, "<ul class=\"cards\">\n{cards}</ul>");
        }
        text += &self.kernel();
        let links = answered
            .iter()
            .map(|question| (question.id, question.title.to_owned()));
        let last = [("goals", self.goals_title()), ("files", FILES.to_owned())];
        let links: String = links
            .chain(last)
            .filter(|(_, title)| !title.is_empty())
            .map(|(id, title)| format!("<a href=\"#{id}\">{title}</a>\n"))
            .collect();
        text + "<nav>\n" + &links + "</nav>\n</header>\n"
    }

    /// The kernel's WireGuard in the terms of the first figure.
    fn kernel(&self) -> String {
        let headlines = headline::headlines(self.runs);
        let Some(first) = headlines.first() else {
            return String::new();
        };
        let of: Vec<&Kernel> = self
            .kernels
            .iter()
            .filter(|kernel| kernel.belongs_to(first.figure))
            .collect();
        let Some(last) = of.last() else {
            return String::new();
        };
        let values: Vec<String> = of
            .iter()
            .map(|of| {
                let (value, unit) = (number(of.value), escape(&first.figure.unit));
                let over = of.over_fork.map_or_else(String::new, |over| {
                    format!(" ({} Tailscale's fork there)", times(over))
                });
                format!("{value} {unit} on {}{over}", escape(&of.on))
            })
            .collect();
        format!(
            "<p>The Linux kernel's WireGuard could not be measured on these machines. <b>Published</b> for \
             one TCP stream on others: {}; {}.</p>\n",
            sequence(&values),
            escape(names::source(&last.source))
        )
    }

    /// A question with its figures, and below them the values of each file; nothing where none has any.
    fn question(&self, of: &Question) -> Result<String, Box<dyn Error>> {
        let mut folded = String::new();
        for run in self.runs {
            let mut values = String::new();
            for section in &run.sections {
                let (mut rows, mut drawn) = (Vec::new(), String::new());
                let figures = section.figures.iter();
                for figure in figures.filter(|figure| question(run, section, figure) == of.id) {
                    match &figure.drawing {
                        Drawing::Bars(_) => rows.push(figure),
                        _ => drawn += &values::figure(figure)?,
                    }
                }
                let table = values::measures(&rows);
                if table.is_empty() && drawn.is_empty() {
                    continue;
                }
                let title = match section.title.as_str() {
                    ALL => String::new(),
                    title => format!("<h3>{}</h3>\n", escape(names::source(title))),
                };
                let published = values::published(&section.published);
                let drawn = grid(&drawn);
                values += &format!("{title}{table}{published}{drawn}");
            }
            if of.id == OTHERS && values.is_empty() && run.sections.is_empty() {
                values = values::goals_of(&run.goals.iter().collect::<Vec<_>>());
            }
            if !values.is_empty() {
                let (stem, incomplete) = (id(run), incomplete(run));
                let label = escape(&run.label());
                folded += &format!(
                    "<details>\n<summary>{label}{incomplete}</summary>\n\
                     <p><a href=\"#{stem}\">The machine and the versions</a></p>\n{values}</details>\n"
                );
            }
        }
        if folded.is_empty() {
            return Ok(folded);
        }
        let Question {
            id, title, says, ..
        } = of;
        let leads = self.leads(of)?;
        Ok(format!(
            "<section id=\"{id}\">\n<h2>{title}</h2>\n<p>{says}</p>\n{leads}{folded}</section>\n"
        ))
    }

    /// The drawings above the folded values: one quantity after the other, on each machine.
    fn leads(&self, of: &Question) -> Result<String, Box<dyn Error>> {
        let mut drawn = String::new();
        for lead in of.leads {
            for run in self.runs {
                let figures = run.sections.iter().flat_map(|section| {
                    let figures = section.figures.iter();
                    figures.filter(move |figure| {
                        question(run, section, figure) == of.id && lead.is(section, figure)
                    })
                });
                for figure in figures.filter(|figure| figure.subjects() > 1) {
                    let body = match &figure.drawing {
                        Drawing::Bars(all) => self.bars(figure, all),
                        _ => svg(figure)?,
                    };
                    let caption = escape(&figure.with_unit(lead.title));
                    let (label, incomplete) = (escape(&run.label()), incomplete(run));
                    let _ = writeln!(
                        drawn,
                        "<figure>\n<figcaption><b>{caption}</b>{label}{incomplete}</figcaption>\n{body}</figure>"
                    );
                }
            }
        }
        Ok(grid(&drawn))
    }

    /// A row for each subject: name, bar with its range, median. The best is first; steps stay in their
    /// order. The bare link is a line across all rows. Published figures of the kernel are rows, too.
    fn bars(&self, figure: &Figure, all: &[(String, Values)]) -> String {
        let (link, subjects): (Vec<_>, Vec<_>) =
            all.iter().partition(|(name, _)| name == names::LINK);
        let link = link.first().map(|(_, values)| values.median);
        let mut rows: Vec<(&str, String, f64, Option<&Values>)> = subjects
            .into_iter()
            .map(|(name, of)| {
                let class = match name.as_str() {
                    "adit" => "adit",
                    name if names::is_step(name) => "step",
                    _ => "",
                };
                (class, escape(real(name)), of.median, Some(of))
            })
            .collect();
        let kernels = || self.kernels.iter().filter(|of| of.belongs_to(figure));
        rows.extend(kernels().map(|of| {
            let name = format!("Linux kernel<small>published: {}</small>", escape(&of.on));
            ("published", name, of.value, None)
        }));
        // Steps build on each other.
        if !rows.iter().any(|(class, ..)| *class == "step") {
            rows.sort_by(|a, b| match figure.is_more_better() {
                true => b.2.total_cmp(&a.2),
                false => a.2.total_cmp(&b.2),
            });
        }
        let greatest = rows
            .iter()
            .map(|(_, _, median, values)| values.map_or(*median, |of| of.max));
        let scale = greatest.chain(link).fold(f64::MIN_POSITIVE, f64::max);
        let share = |value: f64| format!("{:.1}%", (value / scale).clamp(0.0, 1.0) * 100.0);
        let line = link.map_or_else(String::new, |link| {
            format!("<s style=\"left:{}\"></s>", share(link))
        });
        let rows = rows.iter().map(|(class, name, median, values)| {
            let bar = format!("<i style=\"width:{}\"></i>", share(*median));
            let range = values.filter(|of| of.min < of.max).map(|of| {
                let (from, wide) = (share(of.min), share(of.max - of.min));
                format!("<u style=\"left:{from};width:{wide}\"></u>")
            });
            let range = range.unwrap_or_default();
            format!(
                "<tr class=\"{class}\"><th>{name}</th><td class=\"track\">{bar}{range}{line}</td>\
                 <td>{}</td></tr>\n",
                match figure.unit.as_str() {
                    "" => place(*median),
                    _ => number(*median),
                }
            )
        });
        let rows: String = rows.collect();
        let link = link.map(|link| format!("Line: no tunnel, {}.", number(link)));
        let mut sources: Vec<&str> = kernels()
            .map(|kernel| names::source(&kernel.source))
            .collect();
        sources.dedup();
        let sources = sources
            .iter()
            .map(|source| format!("Published, of other machines: {}.", escape(source)));
        let notes: Vec<String> = link.into_iter().chain(sources).collect();
        let notes = match notes.is_empty() {
            true => String::new(),
            false => format!("<p class=\"note\">{}</p>\n", notes.join(" ")),
        };
        format!("<table class=\"bars\">\n{rows}</table>\n{notes}")
    }

    /// The heading of the goals; empty where no file has any.
    fn goals_title(&self) -> String {
        let all: Vec<&Goal> = self.runs.iter().flat_map(|run| &run.goals).collect();
        let met = all.iter().filter(|goal| goal.met).count();
        match all.len() {
            0 => String::new(),
            all => format!("Goals: {met} of {all} met"),
        }
    }

    /// The goals of each file, folded.
    fn goals(&self) -> String {
        let title = self.goals_title();
        if title.is_empty() {
            return title;
        }
        let mut text = format!("<section id=\"goals\">\n<h2>{title}</h2>\n");
        for run in self.runs.iter().filter(|run| !run.goals.is_empty()) {
            let all: Vec<&Goal> = run.goals.iter().collect();
            let met = all.iter().filter(|goal| goal.met).count();
            let class = if met < all.len() { "missed" } else { "met" };
            let _ = writeln!(
                text,
                "<details>\n<summary>{}: <span class=\"{class}\">{met} of {} met</span></summary>\n{}</details>",
                escape(&run.label()),
                all.len(),
                values::goals_of(&all)
            );
        }
        text + "</section>\n"
    }

    /// The machine, the versions, and what went wrong, of each file.
    fn files(&self) -> String {
        let mut text = format!("<section id=\"files\">\n<h2>{FILES}</h2>\n");
        for run in self.runs {
            let (id, label) = (id(run), escape(&run.label()));
            let (command, incomplete) = (escape(&run.command), incomplete(run));
            let day = run
                .started
                .map_or_else(String::new, |at| format!(", {}", date(at)));
            let _ = writeln!(
                text,
                "<details id=\"{id}\">\n<summary>{label}{incomplete}</summary>\n<p>adit-lab {command}{day}</p>"
            );
            text += &values::pairs(&run.machine);
            text += &values::pairs(&run.subjects);
            if !run.notes.is_empty() {
                let notes = run.notes.iter();
                let notes: String = notes
                    .map(|note| format!("<li>{}</li>\n", escape(note)))
                    .collect();
                let _ = writeln!(
                    text,
                    "<h3>What went wrong or was left out</h3>\n<ul>\n{notes}</ul>"
                );
            }
            text += "</details>\n";
        }
        text + "</section>\n"
    }
}

const FILES: &str = "Machines and versions";
/// The question of files that may have nothing but goals.
const OTHERS: &str = "upgrades";

/// The place of a file on the page.
fn id(run: &Run) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    let stem: String = run.stem().chars().map(plain).collect();
    format!("file-{stem}")
}

fn incomplete(run: &Run) -> String {
    run.stopped.as_ref().map_or_else(String::new, |why| {
        format!(" <span class=\"missed\">incomplete: {}</span>", escape(why))
    })
}

/// A drawing as wide as there is room: its size in pixels becomes its shape.
pub(super) fn svg(figure: &Figure) -> Result<String, Box<dyn Error>> {
    let (svg, _) = plot::svg(figure, plot::WIDTH)?;
    let caption = escape(&figure.caption());
    let named = format!("<svg role=\"img\" aria-label=\"{caption}\" ");
    Ok(format!(
        "<div class=\"wide\">{}</div>\n",
        svg.replacen("<svg ", &named, 1)
    ))
}

/// Figures side by side; nothing where there are none.
fn grid(figures: &str) -> String {
    match figures {
        "" => String::new(),
        figures => format!("<div class=\"figures\">\n{figures}</div>\n"),
    }
}

/// A list in a sentence: a, b and c.
fn sequence(all: &[String]) -> String {
    match all {
        [first @ .., last] if !first.is_empty() => format!("{} and {last}", first.join(", ")),
        _ => all.concat(),
    }
}

/// A ratio with two digits.
fn times(ratio: f64) -> String {
    match ratio {
        r if r >= 9.95 => format!("{r:.0} ×"),
        r if r >= 1.995 => format!("{r:.1} ×"),
        r => format!("{r:.2} ×"),
    }
}

fn card(of: &Headline<'_>) -> String {
    let Headline { question, what, .. } = of;
    let (value, unit) = (number(of.adit.median), escape(&of.figure.unit));
    let (other, ratio) = of.other;
    let (other, ratio) = (escape(real(other)), times(ratio));
    let rounds = match of.adit.count {
        1 => "1 round".to_owned(),
        rounds => format!("{rounds} rounds"),
    };
    let elsewhere: String = of
        .elsewhere
        .iter()
        .map(|(file, ratio)| format!("; {} in {}", times(*ratio), escape(file)))
        .collect();
    let less = match of.figure.is_more_better() {
        true => "",
        false => " (less is better)",
    };
    let (machine, file) = (escape(&of.run.machine_in_words()), escape(&of.run.file));
    format!(
        "<li><a href=\"#{question}\">{what}</a><b>{value} {unit}</b>\
         <span>{ratio} {other}, the best other{less}</span><span>{machine}</span>\
         <span class=\"soft\">{rounds}, {file}{elsewhere}</span></li>\n"
    )
}
