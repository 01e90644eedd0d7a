// Detects the CPUs that this process may use, and their NUMA nodes. All files are read below a root
// folder, "/" except in tests, which simulate other machines.
#pragma once

#include <string>
#include <vector>

#include "moracle/base.h"

namespace moracle {

/// The CPUs of the affinity mask, ascending; empty if the system does not report them.
std::vector<int> affinity_cpus();

/// Errors: a CPU on which the system does not let threads of this process run.
Status check_cpus(const std::vector<int>& cpus);

/// The CPU time limit of this process's control groups, in CPUs: the minimum over its own group and
/// all parents. Reads cpu.max (v2), cpu.cfs_quota_us over cpu.cfs_period_us (v1). 0: no limit.
double cgroup_cpus(const std::string& root = "/");

/// Parses "0-3,8" to {0, 1, 2, 3, 8}; unreadable text ends the list.
std::vector<int> parse_cpu_list(const std::string& text);

struct NumaNode {
  int id = 0;
  std::vector<int> cpus;
  bool operator==(const NumaNode&) const = default;
};
/// Nodes with CPUs, by number, from sys/devices/system/node. Empty if there is none.
std::vector<NumaNode> numa_nodes(const std::string& root = "/");

/// The CPUs and nodes of pinned threads.
struct ThreadAffinity {
  std::vector<int> cpus;   ///< CPU of each thread
  std::vector<int> nodes;  ///< node index of each thread
  int num_nodes = 1;       ///< number of nodes with a thread
  std::vector<int> team;   ///< CPUs of threads without a CPU of their own; empty: the caller's mask
};
/// Places threads on `cpus`, node after node, spread evenly. Neighbouring threads share a node.
/// Half as many threads as CPUs leave every other CPU of each node free. Empty if there are more
/// threads than CPUs: pinning would then make threads wait for others.
ThreadAffinity assign_threads(int threads, const std::vector<int>& cpus,
                              const std::vector<NumaNode>& nodes);

}  // namespace moracle
