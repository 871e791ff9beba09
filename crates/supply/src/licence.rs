//! SPDX expressions.

/// Whether the licences that `allowed` names suffice: one of those joined by OR, all of those
/// joined by AND.
pub(crate) fn suffices(expression: &str, allowed: &dyn Fn(&str) -> bool) -> bool {
    // A slash is the OR of old.
    let spaced = expression
        .replace('/', " OR ")
        .replace('(', " ( ")
        .replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut rest = words.as_slice();
    let found = either(&mut rest, allowed);
    found && rest.is_empty() && !words.is_empty()
}

fn either(rest: &mut &[&str], allowed: &dyn Fn(&str) -> bool) -> bool {
    let mut found = both(rest, allowed);
    while let ["OR", tail @ ..] = rest {
        *rest = tail;
        found |= both(rest, allowed);
    }
    found
}

fn both(rest: &mut &[&str], allowed: &dyn Fn(&str) -> bool) -> bool {
    let mut found = one(rest, allowed);
    while let ["AND", tail @ ..] = rest {
        *rest = tail;
        found &= one(rest, allowed);
    }
    found
}

fn one(rest: &mut &[&str], allowed: &dyn Fn(&str) -> bool) -> bool {
    match *rest {
        ["(", tail @ ..] => {
            *rest = tail;
            let found = either(rest, allowed);
            if let [")", tail @ ..] = *rest {
                *rest = tail;
                return found;
            }
            false
        }
        [name, "WITH", exception, tail @ ..] => {
            *rest = tail;
            allowed(&format!("{name} WITH {exception}"))
        }
        [name, tail @ ..] => {
            *rest = tail;
            allowed(name)
        }
        [] => false,
    }
}
