//! Every time-out that decides who is given up when, in one line, and whether their order makes
//! sense: each of them relies on a shorter one having struck before. Pure.

use std::time::Duration;

use crate::cluster::guard::judge::{SILENCE_MIN, STEP_LIMIT_MIN};
use crate::config::{ConfigError, Limit, Recovery, Span};

/// The limits in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// `recovery.step_timeout`.
    step: Limit,
    /// `recovery.node_timeout`, over several nodes.
    node: Option<Duration>,
    /// Under the newer runtime (`run.runtime`): silence after which it gives up a node by itself.
    keepalive: Option<Duration>,
    /// `recovery.time_limit`.
    time: Duration,
    /// `recovery.start_limit`.
    start: Duration,
    /// SLURM's `SlurmdTimeout`, where it is known.
    slurm: Option<Duration>,
}

impl Limits {
    /// Of a launch on one node.
    pub fn of(recovery: &Recovery) -> Self {
        Self {
            step: recovery.step_timeout,
            node: None,
            keepalive: None,
            time: recovery.time_limit.0,
            start: recovery.start_limit.0,
            slurm: None,
        }
    }

    /// Of one over several, where SLURM gives up a silent node after `slurm`.
    pub fn over_nodes(self, recovery: &Recovery, slurm: Option<Duration>) -> Self {
        Self { node: Some(recovery.node_timeout.0), slurm, ..self }
    }

    /// Of one whose launcher gives up a silent node after `keepalive` at the latest.
    pub fn with_keepalive(self, keepalive: Duration) -> Self {
        Self { keepalive: Some(keepalive), ..self }
    }

    /// What people should know, the first to strike first.
    pub fn line(&self) -> String {
        let step = match self.step {
            Limit::Auto => "learned".to_owned(),
            limit => limit.to_string(),
        };
        let mut parts = vec![format!("no sign of life {}", Span(SILENCE_MIN))];
        parts.push(format!("step {step}"));
        if let Some(node) = self.node {
            let slurm = self.slurm.map_or_else(|| "unknown".into(), |s| Span(s).to_string());
            let sooner = self.keepalive.map(|sooner| format!("{} by the runtime, ", Span(sooner)));
            let node = format!("{}{}", sooner.as_deref().unwrap_or_default(), Span(node));
            parts.push(format!("silent node {node} (SLURM's own {slurm})"));
        }
        parts.push(format!("no step committed {}", Span(self.time)));
        parts.push(format!("first step {}", Span(self.start)));
        format!("limits: {}", parts.join(", "))
    }

    /// An order by which healthy parts would be given up.
    ///
    /// # Errors
    /// It, with both keys.
    pub fn check(&self) -> Result<(), ConfigError> {
        let refuse = |key: &str, value: Duration, reason: String| {
            let (key, value) = (key.to_owned(), Span(value).to_string());
            Err(ConfigError::Refused { key, value, reason })
        };
        let Some(node) = self.node else { return Ok(()) };
        if node <= SILENCE_MIN {
            let silence = Span(SILENCE_MIN);
            let reason = format!(
                "over several nodes it must be longer than a guardian's own limit ({silence}), or \
                 a node that is busy for a moment is given up before its rank is; write \"5s\""
            );
            return refuse("recovery.node_timeout", node, reason);
        }
        if self.start <= node {
            let reason = format!(
                "it must be longer than recovery.node_timeout ({}), or a start that met a silent \
                 node is given up before anybody knows which",
                Span(node)
            );
            return refuse("recovery.start_limit", self.start, reason);
        }
        Ok(())
    }

    /// An order that works, and hardly as it was meant.
    pub fn doubts(&self) -> Vec<String> {
        let mut doubts = Vec::new();
        if let (Some(node), Some(slurm)) = (self.node, self.slurm)
            && node >= slurm
        {
            doubts.push(format!(
                "recovery.node_timeout = {} is not shorter than SLURM's SlurmdTimeout = {}: SLURM \
                 takes a silent node out of the job before launch leaves it out; lower the former",
                Span(node),
                Span(slurm)
            ));
        }
        if let (Some(node), Some(keepalive)) = (self.node, self.keepalive)
            && keepalive >= node
        {
            doubts.push(format!(
                "recovery.node_timeout = {} is not longer than the runtime's own keepalive (up to \
                 {}): launch leaves a silent node out while its ranks are still waited for; raise \
                 it to \"5s\"",
                Span(node),
                Span(keepalive)
            ));
        }
        if self.start < self.time {
            doubts.push(format!(
                "recovery.start_limit = {} is shorter than recovery.time_limit = {}: a start, \
                 which reads data and compiles, has less time than a step",
                Span(self.start),
                Span(self.time)
            ));
        }
        if self.step == Limit::Auto && self.time / 2 < STEP_LIMIT_MIN {
            doubts.push(format!(
                "recovery.time_limit = {} leaves no room for the learned recovery.step_timeout (at \
                 least {}, at most half of it): a rank that hangs costs the whole world",
                Span(self.time),
                Span(STEP_LIMIT_MIN)
            ));
        }
        doubts
    }
}

/// `SlurmdTimeout` in what `scontrol show config` prints.
pub fn slurmd_timeout(config: &str) -> Option<Duration> {
    let line = config.lines().find(|line| line.trim_start().starts_with("SlurmdTimeout"))?;
    let value = line.split_once('=')?.1.split_whitespace().next()?;
    // 0: SLURM never gives a node up.
    value.parse().ok().filter(|seconds| *seconds > 0).map(Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::attempt::runtime::SILENCE_MAX;

    const SECOND: Duration = Duration::from_secs(1);

    fn limits(change: impl FnOnce(&mut Recovery), slurm: Option<u64>) -> Limits {
        let mut recovery = Recovery::default();
        change(&mut recovery);
        Limits::of(&recovery).over_nodes(&recovery, slurm.map(Duration::from_secs))
    }

    #[test]
    fn the_line_has_them_all() {
        let line = limits(|_| {}, Some(300)).line();
        assert_eq!(
            line,
            "limits: no sign of life 1s, step learned, silent node 5s (SLURM's own 300s), no step \
             committed 60s, first step 120s"
        );
        assert!(!Limits::of(&Recovery::default()).line().contains("node"));
    }

    #[test]
    fn the_runtimes_keepalive_strikes_first_and_the_line_says_so() {
        let of = |node: u32| limits(|r| r.node_timeout = Span(node * SECOND), Some(300));
        let under_runtime = of(5).with_keepalive(SILENCE_MAX);
        let line = under_runtime.line();
        assert!(line.contains("silent node 3s by the runtime, 5s (SLURM's own 300s)"), "{line}");
        assert!(under_runtime.check().is_ok());
        assert_eq!(under_runtime.doubts(), Vec::<String>::new());
        assert_eq!(of(3).doubts(), Vec::<String>::new(), "mpirun has no keepalive");
        for node in [2, 3] {
            let doubts = of(node).with_keepalive(SILENCE_MAX).doubts();
            assert_eq!(doubts.len(), 1, "{doubts:?}");
            assert!(doubts[0].contains(&format!("recovery.node_timeout = {node}s")), "{doubts:?}");
            assert!(doubts[0].contains("keepalive (up to 3s)"), "{doubts:?}");
        }
    }

    #[test]
    fn the_defaults_are_in_order() {
        assert!(limits(|_| {}, Some(300)).check().is_ok());
        assert_eq!(limits(|_| {}, Some(300)).doubts(), Vec::<String>::new());
        assert_eq!(limits(|_| {}, None).doubts(), Vec::<String>::new());
    }

    #[test]
    fn a_wrong_order_is_refused_with_both_keys() {
        let text = |limits: Limits| limits.check().unwrap_err().to_string();
        let short = text(limits(|r| r.node_timeout = Span(SECOND), None));
        assert!(short.contains("recovery.node_timeout = 1s") && short.contains("guardian"));
        let start = text(limits(|r| r.start_limit = Span(4 * SECOND), None));
        assert!(start.contains("recovery.start_limit = 4s"), "{start}");
        assert!(start.contains("recovery.node_timeout (5s)"), "{start}");
        let one_node = Recovery { node_timeout: Span(SECOND), ..Recovery::default() };
        assert!(Limits::of(&one_node).check().is_ok(), "there is no other node");
    }

    #[test]
    fn a_doubtful_order_is_named() {
        let one = |limits: Limits| {
            let doubts = limits.doubts();
            assert_eq!(doubts.len(), 1, "{doubts:?}");
            doubts[0].clone()
        };
        assert!(one(limits(|_| {}, Some(5))).contains("SlurmdTimeout = 5s"));
        let start = one(limits(|r| r.start_limit = Span(30 * SECOND), None));
        assert!(start.contains("start_limit = 30s") && start.contains("time_limit = 60s"));
        let time = one(limits(|r| r.time_limit = Span(8 * SECOND), None));
        assert!(time.contains("step_timeout"), "{time}");
    }

    #[test]
    fn slurms_own_limit_is_read() {
        let text = "SlurmctldTimeout        = 120 sec\nSlurmdTimeout           = 300 sec\n";
        assert_eq!(slurmd_timeout(text), Some(Duration::from_secs(300)));
        assert_eq!(slurmd_timeout("SlurmdTimeout = 0 sec"), None);
        assert_eq!(slurmd_timeout("slurm_load_ctl_conf error"), None);
    }
}
