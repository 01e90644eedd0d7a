// Tests which CPUs are usable and where threads are pinned. A folder with files of /proc and /sys
// simulates a machine.
#include "base/threads/usable_cpus.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>

#include "support/temporary_folder.h"

namespace moracle::usable_cpus_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class FakeRoot : public ::testing::Test {
 protected:
  void write(const std::string& path, const std::string& text) const {
    folder_.write(path, text + "\n");
  }

  const testing::TemporaryFolder folder_;
  const std::string& root_ = folder_.path();
};
using CgroupCpus = FakeRoot;
using NumaNodes = FakeRoot;

TEST(UsableCpus, AcceptsOwnAffinityMaskAndKeepsIt) {
  const std::vector<int> mask = affinity_cpus();
  EXPECT_TRUE(check_cpus(mask).ok());
  EXPECT_TRUE(check_cpus({}).ok());
  EXPECT_EQ(affinity_cpus(), mask);
}

TEST(UsableCpus, NamesTheCpuThatTheSystemRefuses) {
  const std::vector<int> mask = affinity_cpus();
  for (const int absent : {-1, 1023, 1 << 20}) {
    if (std::find(mask.begin(), mask.end(), absent) != mask.end()) continue;
    std::vector<int> cpus = mask;
    cpus.push_back(absent);
    const Status checked = check_cpus(cpus);
    ASSERT_FALSE(checked.ok());
    EXPECT_EQ(checked.error().place, "cpus");
    EXPECT_EQ(checked.error().fact, "the system refuses CPU " + std::to_string(absent));
  }
  EXPECT_EQ(affinity_cpus(), mask);
}

TEST_F(CgroupCpus, UnlimitedWithoutQuota) {
  EXPECT_EQ(cgroup_cpus(root_), 0);
  write("proc/self/cgroup", "0::/user.slice\n");
  EXPECT_EQ(cgroup_cpus(root_), 0);
  write("sys/fs/cgroup/user.slice/cpu.max", "max 100000");
  EXPECT_EQ(cgroup_cpus(root_), 0);
}

TEST_F(CgroupCpus, UseSmallestQuotaOfGroupAndAncestors) {
  write("proc/self/cgroup", "0::/kube/pod7/box");
  write("sys/fs/cgroup/kube/cpu.max", "800000 100000");
  write("sys/fs/cgroup/kube/pod7/cpu.max", "250000 100000");
  write("sys/fs/cgroup/kube/pod7/box/cpu.max", "max 100000");
  EXPECT_EQ(cgroup_cpus(root_), 2.5);
}

TEST_F(CgroupCpus, UseMountRootWhenContainerHidesGroupPath) {
  write("proc/self/cgroup", "0::/docker/0123");
  write("sys/fs/cgroup/cpu.max", "150000 100000");
  EXPECT_EQ(cgroup_cpus(root_), 1.5);
}

TEST_F(CgroupCpus, ReadCgroupVersion1) {
  write("proc/self/cgroup", "5:cpu,cpuacct:/docker/0123\n3:cpuset:/docker/0123\n0::/docker/0123");
  write("sys/fs/cgroup/cpu,cpuacct/docker/0123/cpu.cfs_quota_us", "300000");
  write("sys/fs/cgroup/cpu,cpuacct/docker/0123/cpu.cfs_period_us", "100000");
  EXPECT_EQ(cgroup_cpus(root_), 3);
  write("sys/fs/cgroup/cpu,cpuacct/docker/0123/cpu.cfs_quota_us", "-1");
  EXPECT_EQ(cgroup_cpus(root_), 0);
}

TEST(CpuList, ParsesNumbersAndRanges) {
  EXPECT_THAT(parse_cpu_list("0-3,8,10-11\n"), ElementsAre(0, 1, 2, 3, 8, 10, 11));
  EXPECT_THAT(parse_cpu_list(""), IsEmpty());
  EXPECT_THAT(parse_cpu_list("2,x"), ElementsAre(2));
  EXPECT_THAT(parse_cpu_list("3-1"), IsEmpty());
}

TEST_F(NumaNodes, ListOnlyNodesWithCpus) {
  EXPECT_THAT(numa_nodes(root_), IsEmpty());
  write("sys/devices/system/node/online", "0-2");
  write("sys/devices/system/node/node0/cpulist", "0-1,4-5");
  write("sys/devices/system/node/node1/cpulist", "2-3,6-7");
  write("sys/devices/system/node/node2/cpulist", "");  // a node without CPUs
  EXPECT_EQ(numa_nodes(root_), (std::vector<NumaNode>{{0, {0, 1, 4, 5}}, {1, {2, 3, 6, 7}}}));
}

TEST(NumaNodesHere, CoverTheCpusOfThisProcess) {
  const std::vector<NumaNode> nodes = numa_nodes();
  if (nodes.empty()) GTEST_SKIP() << "this system shows no nodes";
  for (const int cpu : affinity_cpus()) {
    int found = 0;
    for (const NumaNode& node : nodes)
      found += static_cast<int>(std::count(node.cpus.begin(), node.cpus.end(), cpu));
    EXPECT_EQ(found, 1) << cpu;
  }
}

TEST(ThreadAffinity, FillNodeAfterNodeEvenly) {
  const std::vector<NumaNode> nodes = {{0, {0, 1, 4, 5}}, {1, {2, 3, 6, 7}}};
  std::vector<int> all(8);
  std::iota(all.begin(), all.end(), 0);
  const ThreadAffinity full = assign_threads(8, all, nodes);
  EXPECT_THAT(full.cpus, ElementsAre(0, 1, 4, 5, 2, 3, 6, 7));
  EXPECT_THAT(full.nodes, ElementsAre(0, 0, 0, 0, 1, 1, 1, 1));
  EXPECT_EQ(full.num_nodes, 2);
  for (int threads = 2; threads <= 8; ++threads) {
    const ThreadAffinity some = assign_threads(threads, all, nodes);
    const auto on_first = std::count(some.nodes.begin(), some.nodes.end(), 0);
    EXPECT_LE(std::abs(2 * on_first - threads), 1) << threads;
  }
  // The mask may exclude one node.
  EXPECT_EQ(assign_threads(2, {0, 4}, nodes).num_nodes, 1);
  EXPECT_EQ(assign_threads(2, {0, 1}, {}).num_nodes, 1);
}

TEST(ThreadAffinity, EmptyForMoreThreadsThanCpus) {
  EXPECT_THAT(assign_threads(3, {0, 1}, {{0, {0, 1}}}).cpus, IsEmpty());
}

}  // namespace
}  // namespace moracle::usable_cpus_test
