// Which CPUs this process may use, and on which nodes of memory they are. Everything is read below
// a folder, "/" but for tests, so that machines which are not here can be simulated.
#pragma once

#include <string>
#include <vector>

namespace moracle {

/// The affinity mask's CPUs, ascending; empty where the system does not say.
std::vector<int> affinity_cpus();

/// CPUs' worth of time that the control groups of this process grant, the least of its own and of
/// those above it: cpu.max (v2), cpu.cfs_quota_us over cpu.cfs_period_us (v1). 0: no limit.
double cgroup_cpus(const std::string& root = "/");

/// "0-3,8" → {0, 1, 2, 3, 8}; what cannot be read ends the list.
std::vector<int> parse_cpu_list(const std::string& text);

struct NumaNode {
  int id = 0;
  std::vector<int> cpus;
  bool operator==(const NumaNode&) const = default;
};
/// Nodes that have CPUs, by number, from sys/devices/system/node. Empty where there is none.
std::vector<NumaNode> numa_nodes(const std::string& root = "/");

/// Where threads stay that are pinned.
struct ThreadPlaces {
  std::vector<int> cpus;   ///< of each thread
  std::vector<int> nodes;  ///< index of each thread's node
  int num_nodes = 1;       ///< that have a thread
};
/// Threads on `cpus`, node after node, spread evenly: neighbours share a node, and half as many
/// threads as CPUs leave every other CPU free on each. Empty where there are more threads than
/// CPUs: then pinning would make some wait for others.
ThreadPlaces place_threads(int threads, const std::vector<int>& cpus,
                           const std::vector<NumaNode>& nodes);

}  // namespace moracle
