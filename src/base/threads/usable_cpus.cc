#include "base/threads/usable_cpus.h"

#include <sched.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/text.h"

namespace moracle {
namespace {

std::string first_line(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// Quota divided by period; 0 if one is missing, "max" or -1.
double share(const std::string& quota, const std::string& period) {
  const auto number = [](const std::string& text) {
    double value = 0;
    std::istringstream(text) >> value;
    return value;
  };
  const double q = number(quota), p = number(period);
  return q > 0 && p > 0 ? q / p : 0;
}

double quota_v2(const std::filesystem::path& folder) {
  std::istringstream line(first_line(folder / "cpu.max"));
  std::string quota, period;
  line >> quota >> period;
  return share(quota, period);
}
double quota_v1(const std::filesystem::path& folder) {
  return share(first_line(folder / "cpu.cfs_quota_us"), first_line(folder / "cpu.cfs_period_us"));
}

// The smallest quota of the group and its parents, up to the mount point. A container sees only its
// part of the hierarchy: a missing path counts as the mount point itself.
template <class Quota>
double least_above(const std::filesystem::path& mount, const std::string& group, Quota quota) {
  double least = 0;
  std::filesystem::path path = std::filesystem::path(group).relative_path();
  for (;; path = path.parent_path()) {
    const double here = quota(mount / path);
    if (here > 0 && (least == 0 || here < least)) least = here;
    if (path.empty()) return least;
  }
}

}  // namespace

std::vector<int> affinity_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cpus;
  if (::sched_getaffinity(0, sizeof set, &set) != 0) return cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  }
  return cpus;
}

// The system keeps only the CPUs that the process may use, so set the mask and read it back.
Status check_cpus(const std::vector<int>& cpus) {
  cpu_set_t before, wanted, set;
  CPU_ZERO(&wanted);
  CPU_ZERO(&set);
  for (const int cpu : cpus) {
    if (cpu >= 0 && cpu < CPU_SETSIZE) CPU_SET(cpu, &wanted);
  }
  if (::sched_getaffinity(0, sizeof before, &before) != 0) return {};  // the system has no masks
  if (::sched_setaffinity(0, sizeof wanted, &wanted) == 0) {
    ::sched_getaffinity(0, sizeof set, &set);
    ::sched_setaffinity(0, sizeof before, &before);
  }
  for (const int cpu : cpus) {
    if (cpu >= 0 && cpu < CPU_SETSIZE && CPU_ISSET(cpu, &set)) continue;
    return Error{ErrorKind::kInvalidArgument, "", "cpus", "CPUs that this process may use",
                 str("the system refuses CPU ", cpu)};
  }
  return {};
}

double cgroup_cpus(const std::string& root) {
  const std::filesystem::path base(root), mounts = base / "sys/fs/cgroup";
  std::ifstream groups(base / "proc/self/cgroup");
  double least = 0;
  const auto take = [&](double quota) {
    if (quota > 0 && (least == 0 || quota < least)) least = quota;
  };
  // "id:controllers:path"; an empty controller list means version 2.
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == line.npos || second == line.npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string group = line.substr(second + 1);
    if (controllers.empty()) {
      take(least_above(mounts, group, quota_v2));
      take(least_above(mounts / "unified", group, quota_v2));
    } else if (("," + controllers + ",").find(",cpu,") != std::string::npos) {
      take(least_above(mounts / "cpu", group, quota_v1));
      take(least_above(mounts / controllers, group, quota_v1));
    }
  }
  return least;
}

std::vector<int> parse_cpu_list(const std::string& text) {
  std::vector<int> cpus;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (at < end) {
    int first = 0;
    auto [after, error] = std::from_chars(at, end, first);
    if (error != std::errc()) break;
    int last = first;
    if (after < end && *after == '-') {
      const auto [after_last, broken] = std::from_chars(after + 1, end, last);
      if (broken != std::errc() || last < first || last - first > 1 << 16) break;
      after = after_last;
    }
    for (int cpu = first; cpu <= last; ++cpu) cpus.push_back(cpu);
    if (after == end || *after != ',') break;
    at = after + 1;
  }
  return cpus;
}

std::vector<NumaNode> numa_nodes(const std::string& root) {
  const std::filesystem::path folder = std::filesystem::path(root) / "sys/devices/system/node";
  std::vector<NumaNode> nodes;
  for (const int id : parse_cpu_list(first_line(folder / "online"))) {
    const std::string name = "node" + std::to_string(id);
    std::vector<int> cpus = parse_cpu_list(first_line(folder / name / "cpulist"));
    if (!cpus.empty()) nodes.push_back({id, std::move(cpus)});
  }
  return nodes;
}

ThreadAffinity assign_threads(int threads, const std::vector<int>& cpus,
                              const std::vector<NumaNode>& nodes) {
  ThreadAffinity affinity;
  if (threads < 1 || threads > static_cast<int>(cpus.size())) return affinity;
  struct Cpu {
    int node, cpu;
  };
  std::vector<Cpu> all;
  for (const int cpu : cpus) {
    int node = 0;
    for (size_t i = 0; i < nodes.size(); ++i) {
      if (std::find(nodes[i].cpus.begin(), nodes[i].cpus.end(), cpu) != nodes[i].cpus.end())
        node = static_cast<int>(i);
    }
    all.push_back({node, cpu});
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const Cpu& a, const Cpu& b) { return a.node < b.node; });
  affinity.num_nodes = 0;
  int last = -1;
  for (int t = 0; t < threads; ++t) {
    const Cpu& at = all[static_cast<size_t>(t) * all.size() / static_cast<size_t>(threads)];
    affinity.cpus.push_back(at.cpu);
    affinity.nodes.push_back(at.node);
    affinity.num_nodes += at.node != last ? 1 : 0;
    last = at.node;
  }
  return affinity;
}

}  // namespace moracle
