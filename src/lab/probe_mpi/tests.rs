//! What the probe's plans and judgements claim.

use super::*;

#[test]
fn a_kill_survives_the_command_line() {
    for text in ["step@5:3:0+0", "join-hello@2:1:2+0", "merge@1:0:0+250"] {
        let kill: Kill = text.parse().unwrap();
        assert_eq!(kill.to_string(), text);
    }
    assert_eq!("join-hello@2:1".parse::<Kill>().unwrap().life, 2);
    for text in ["", "step", "step@x:1", "step@1", "step@1:2:3:4", "lunch@1:2", "step@1:2+x"] {
        assert!(text.parse::<Kill>().is_err(), "{text}");
    }
}

#[test]
fn a_sequence_kills_whoever_holds_the_rank_then() {
    let kills = sequence(5, 4);
    let ranks: Vec<usize> = kills.iter().map(|kill| kill.rank).collect();
    let lives: Vec<u32> = kills.iter().map(|kill| kill.life).collect();
    assert_eq!(ranks, [3, 2, 1, 0, 3]);
    assert_eq!(lives, [0, 0, 0, 0, 1]);
}

fn observed(reports: Vec<Report>) -> Observed {
    Observed { reports, last_lines: VecDeque::new(), status: None }
}

#[test]
fn success_is_every_rank_with_the_right_state_and_every_death() {
    let kills = vec!["step@1:0".parse().unwrap()];
    let scenario = Scenario { ranks: 2, steps: 2, kills, limit: Duration::from_secs(1) };
    let state = fingerprint(&expected_state(2, 2));
    let done = |rank, state: &str| Report::Done {
        rank,
        ranks: 2,
        state: state.to_owned(),
        workarounds: "Active".into(),
    };
    let killed = Report::Killed { kill: "step@1:0".into(), pid: 1 };
    let judged = |reports| judge(&scenario, &observed(reports), 0.1).ok;
    assert!(judged(vec![killed.clone(), done(0, &state), done(1, &state)]));
    assert!(!judged(vec![killed.clone(), done(0, &state), done(0, &state)]));
    assert!(!judged(vec![killed, done(0, &state), done(1, "0000")]));
    assert!(!judged(vec![done(0, &state), done(1, &state)]));
}

#[test]
fn a_repeated_or_missing_step_changes_the_state() {
    assert_ne!(expected_state(3, 2)[..8], expected_state(2, 2)[..8]);
    assert_ne!(expected_state(2, 3)[..8], expected_state(2, 2)[..8]);
}
