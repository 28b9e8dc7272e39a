//! The guide's table of fused operators is the table that decides.

use std::path::Path;

use kiln_models::ops::{Availability, FUSED};

/// The table in Markdown, with a note for each reason.
fn table() -> String {
    let mut notes = Vec::new();
    let mut cell = |availability| {
        let why = match availability {
            Availability::Default => return "yes".to_owned(),
            Availability::Missing(why) => why,
        };
        let note = notes.iter().position(|note| *note == why).unwrap_or_else(|| {
            notes.push(why);
            notes.len() - 1
        });
        format!("no ({})", note + 1)
    };
    let mut lines = vec![
        "| operator | CPU | wgpu | CUDA | f32 | bf16 | f16 |".to_owned(),
        "| --- | --- | --- | --- | --- | --- | --- |".into(),
    ];
    for row in FUSED {
        let cells = row.targets.into_iter().chain(row.dtypes).map(&mut cell).collect::<Vec<_>>();
        lines.push(format!("| `{}` | {} |", row.name, cells.join(" | ")));
    }
    lines.push(String::new());
    lines.extend(notes.iter().enumerate().map(|(index, why)| format!("{}. {why}", index + 1)));
    lines.join("\n")
}

#[test]
fn the_guide_shows_which_operator_is_fused_where() {
    let chapter = std::fs::read_to_string(
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("src/guide/operators.md"),
    )
    .unwrap();
    assert!(chapter.contains(&table()), "src/guide/operators.md lacks this table:\n\n{}", table());
}
