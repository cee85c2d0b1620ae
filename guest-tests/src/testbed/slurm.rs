//! The tasks of a Slurm job step, as described by each task's environment (srun(1), "OUTPUT ENVIRONMENT VARIABLES").

use anyhow::{Context as _, Result, ensure};

use super::MOST_GUESTS;

/// Maximum number of hosts in a list. It bounds the work for a range such as `n[0-999999999]`.
const MOST_HOSTS: usize = 4096;

/// One task of a job step and the hosts of all tasks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Task {
    pub(super) rank: u8,
    /// The host of each rank.
    pub(super) hosts: Vec<String>,
    /// Job and step ID, such as `7.0`.
    pub(super) step: String,
}

impl Task {
    /// Returns the task that an environment describes, or `None` outside a job step.
    ///
    /// # Errors
    /// Fails if the environment is incomplete, or Slurm has not assigned consecutive ranks to each host.
    pub(super) fn of(variable: impl Fn(&str) -> Option<String>) -> Result<Option<Self>> {
        let Some(rank) = variable("SLURM_PROCID") else { return Ok(None) };
        let rank: u8 =
            rank.parse().with_context(|| format!("SLURM_PROCID={rank} is not a supported rank"))?;
        // A job step may have fewer hosts and tasks than its job, so the variables of the step take precedence.
        let first = |names: [&str; 2]| {
            let found = names.iter().find_map(|name| variable(name));
            found.with_context(|| {
                format!("SLURM_PROCID is set, but {} is not; start this command with srun", names[1])
            })
        };
        let nodes = hosts(&first(["SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"])?)?;
        let counts = counts(&first(["SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"])?)?;
        let size = first(["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"])?;
        ensure!(
            nodes.len() == counts.len(),
            "Slurm has {} hosts, but {} numbers of tasks",
            nodes.len(),
            counts.len()
        );
        let hosts: Vec<String> = nodes
            .iter()
            .zip(&counts)
            .flat_map(|(host, count)| std::iter::repeat_n(host.clone(), *count))
            .take(usize::from(MOST_GUESTS) + 1)
            .collect();
        ensure!(
            hosts.len() <= usize::from(MOST_GUESTS),
            "the job step has more than {MOST_GUESTS} tasks, which is the maximum number of guests"
        );
        ensure!(
            size == hosts.len().to_string(),
            "SLURM_NTASKS is {size}, but the hosts have {} tasks",
            hosts.len()
        );
        let own =
            hosts.get(usize::from(rank)).with_context(|| format!("rank {rank} of {size} does not exist"))?;
        // The environment does not describe how ranks are distributed, but this task's rank must map to its own host.
        let node = variable("SLURM_NODEID").and_then(|number| nodes.get(number.parse::<usize>().ok()?));
        ensure!(
            node.is_none_or(|node| node == own),
            "the ranks on each host are not consecutive; start this command with srun --distribution=block"
        );
        let number = |name| variable(name).unwrap_or_default();
        let step = format!("{}.{}", number("SLURM_JOB_ID"), number("SLURM_STEP_ID"));
        Ok(Some(Self { rank, hosts, step }))
    }
}

/// Expands a list of hosts such as `a,n[01-03,7],rack[0-1]n[1-2]`.
fn hosts(list: &str) -> Result<Vec<String>> {
    let mut all = Vec::new();
    let (mut depth, mut begin) = (0_u32, 0);
    for (at, c) in list.char_indices().chain([(list.len(), ',')]) {
        match c {
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                all.append(&mut expand(list.get(begin..at).unwrap_or_default())?);
                ensure!(all.len() <= MOST_HOSTS, "the list of hosts '{list}' is too long");
                begin = at + 1;
            }
            _ => {}
        }
    }
    ensure!(depth == 0 && all.iter().all(|host| !host.is_empty()), "'{list}' is not a list of hosts");
    Ok(all)
}

/// Expands one pattern, such as `n[01-03]`. If there are several ranges, the last one varies fastest.
fn expand(pattern: &str) -> Result<Vec<String>> {
    let Some((before, rest)) = pattern.split_once('[') else { return Ok(vec![pattern.to_owned()]) };
    let (ranges, after) =
        rest.split_once(']').with_context(|| format!("'{pattern}' has no closing bracket"))?;
    let after = expand(after)?;
    let mut all = Vec::new();
    for range in ranges.split(',') {
        let (low, high) = range.split_once('-').unwrap_or((range, range));
        let bound =
            |text: &str| text.parse::<u32>().with_context(|| format!("'{range}' is not a range of numbers"));
        for number in bound(low)?..=bound(high)? {
            let width = low.len();
            all.extend(after.iter().map(|after| format!("{before}{number:0width$}{after}")));
            ensure!(all.len() <= MOST_HOSTS, "the list of hosts '{pattern}' is too long");
        }
    }
    Ok(all)
}

/// Expands task counts such as `2(x3),1`, which means 2, 2, 2 and 1.
fn counts(list: &str) -> Result<Vec<usize>> {
    let mut all = Vec::new();
    for part in list.split(',') {
        let (count, times) = match part.strip_suffix(')').and_then(|part| part.split_once("(x")) {
            Some((count, times)) => (count, times),
            None => (part, "1"),
        };
        let number =
            |text: &str| text.parse().with_context(|| format!("'{list}' is not a list of numbers of tasks"));
        let times: usize = number(times)?;
        ensure!(all.len().saturating_add(times) <= MOST_HOSTS, "'{list}' describes too many hosts");
        all.extend(std::iter::repeat_n(number(count)?, times));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: &[(&str, &str)] = &[
        ("SLURM_PROCID", "2"),
        ("SLURM_NODEID", "1"),
        ("SLURM_NTASKS", "3"),
        ("SLURM_JOB_NODELIST", "n[1-2]"),
        ("SLURM_TASKS_PER_NODE", "2,1"),
        ("SLURM_JOB_ID", "7"),
        ("SLURM_STEP_ID", "0"),
    ];

    /// Returns the task of [`STEP`] with some variables changed. A variable without a value is removed.
    fn task(changes: &[(&str, &str)]) -> Result<Option<Task>> {
        Task::of(|name| {
            let found = changes.iter().chain(STEP).find(|(key, _)| *key == name);
            found.map(|(_, value)| (*value).to_owned()).filter(|value| !value.is_empty())
        })
    }

    #[test]
    fn host_list_ranges_keep_leading_zeros() {
        assert_eq!(hosts("a,n[01-03,7]").unwrap(), ["a", "n01", "n02", "n03", "n7"]);
        assert_eq!(hosts("r[0-1]n[1-2]").unwrap(), ["r0n1", "r0n2", "r1n1", "r1n2"]);
        assert_eq!(hosts("n[9-10].lab").unwrap(), ["n9.lab", "n10.lab"]);
    }

    #[test]
    fn rejects_malformed_and_huge_host_lists() {
        for bad in ["", "a,,b", "n[1", "n[1-x]", "n[]", "n[0-999999999]", "n[0-99][0-99]"] {
            assert!(hosts(bad).is_err(), "{bad}");
        }
        for bad in ["", "x", "2(x", "1(x99999999)", "2(xx)"] {
            assert!(counts(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn task_counts_are_expanded() {
        assert_eq!(counts("2(x3),1").unwrap(), [2, 2, 2, 1]);
    }

    #[test]
    fn task_lists_host_of_each_rank() {
        let found = task(&[]).unwrap().unwrap();
        assert_eq!((found.rank, found.step.as_str()), (2, "7.0"));
        assert_eq!(found.hosts, ["n1", "n1", "n2"]);
        assert_eq!(task(&[("SLURM_PROCID", "")]).unwrap(), None);
    }

    #[test]
    fn step_may_be_smaller_than_job() {
        let step = [
            ("SLURM_STEP_NODELIST", "n2"),
            ("SLURM_STEP_TASKS_PER_NODE", "1"),
            ("SLURM_STEP_NUM_TASKS", "1"),
            ("SLURM_PROCID", "0"),
            ("SLURM_NODEID", "0"),
        ];
        assert_eq!(task(&step).unwrap().unwrap().hosts, ["n2"]);
    }

    #[test]
    fn rejects_ranks_that_are_not_consecutive() {
        let error = task(&[("SLURM_NODEID", "0")]).unwrap_err().to_string();
        assert!(error.contains("--distribution=block"), "{error}");
        assert!(task(&[("SLURM_NTASKS", "4")]).is_err() && task(&[("SLURM_JOB_NODELIST", "")]).is_err());
        assert!(task(&[("SLURM_TASKS_PER_NODE", "40,1"), ("SLURM_NTASKS", "41")]).is_err());
    }
}
