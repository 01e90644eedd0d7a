#include "ranks/ranks.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <iostream>
#include <streambuf>

#include "base/text.h"
#include "base/threads/thread_pool.h"
#include "base/threads/usable_cpus.h"
#include "base/try.h"
#include "numbers.h"
#include "ranks/launcher.h"
#include "ranks/parallel_text.h"

namespace moracle::cli {
namespace {

// Group of this process, until its end.
std::shared_ptr<Group> job;
bool told = false;

// Discards all output.
class Nowhere : public std::streambuf {
  int overflow(int c) override { return c == EOF ? 0 : c; }
  std::streamsize xsputn(const char*, std::streamsize count) override { return count; }
};
Nowhere nowhere;
std::streambuf* const real_errors = std::cerr.rdbuf();

// Host and CPUs of a rank, for dividing the CPUs of a host.
struct HostCpus {
  char host[64] = {};
  uint64_t cpus[64] = {};  // bits of the affinity mask
  bool has(size_t cpu) const { return cpu < 4096 && (cpus[cpu / 64] >> (cpu % 64) & 1) != 0; }
};

// Number of CPUs for this rank: each CPU of the affinity mask is shared by the ranks of this host
// that may use it.
Result<int> threads_of_rank(Group& group) {
  HostCpus own;
  ::gethostname(own.host, sizeof own.host - 1);
  const std::vector<int> cpus = affinity_cpus();
  for (const int cpu : cpus)
    if (cpu < 4096) own.cpus[cpu / 64] |= uint64_t{1} << (cpu % 64);
  std::vector<HostCpus> all(group.size());
  MORACLE_CHECK(
      group.all_gather(std::as_bytes(std::span(&own, 1)), std::as_writable_bytes(std::span(all))));
  double share = 0;
  int64_t neighbours = 0;
  for (const HostCpus& other : all) neighbours += std::strcmp(other.host, own.host) == 0 ? 1 : 0;
  for (const int cpu : cpus) {
    int64_t users = 0;
    for (const HostCpus& other : all)
      users +=
          std::strcmp(other.host, own.host) == 0 && other.has(static_cast<size_t>(cpu)) ? 1 : 0;
    share += 1.0 / static_cast<double>(std::max<int64_t>(users, 1));
  }
  if (const double limit = cgroup_cpus(); limit > 0)
    share = std::min(share, limit / static_cast<double>(neighbours));
  return std::max(1, static_cast<int>(share + 1e-6));
}

// "cuda" is the local rank's GPU. A launcher may restrict each rank to its own GPU.
DeviceName device_of_rank(Platform platform, const RankOptions& rank) {
  int64_t there = 0;
  for (const GpuInfo& gpu : Machine::here().gpus) there += gpu.platform == platform ? 1 : 0;
  return {platform, static_cast<int>(rank.local_rank % std::max<int64_t>(there, 1))};
}

}  // namespace

void RankArguments::add_to(CLI::App& app) {
  CLI::Option* const ranks = app.add_option(
      "--parallel", parallel,
      "ep=N: N ranks share the experts; start them with mpirun -n N, srun or torchrun. "
      "mode=dispatched behind a comma: each rank has its own sequences; tp=N: the ranks also "
      "divide attention, dense layers and lm_head; lm_head=N: they divide lm_head alone");
  app.add_option(
         "--placement", placement,
         "With --parallel: linear: each rank holds consecutive experts; round-robin: expert "
         "e is on rank e mod N; or a file of --routing-statistics: balanced by measured "
         "load, and with --gpu-memory slots start with the experts that are used most")
      ->capture_default_str();
  app.add_option("--redundant-experts", redundant_experts,
                 "Redundant experts: copies of hot experts in each layer, with --placement FILE or "
                 "serve's --rebalance-interval; the copies share their tokens")
      ->needs(ranks)
      ->capture_default_str();
  app.add_option("--transport", transport,
                 "Transport between ranks: mpi, tcp, or auto: what the launcher offers")
      ->capture_default_str();
  app.add_option("--exchange", exchange,
                 "Exchange of activations between ranks: auto, or a name that moracle explain "
                 "--parallel lists")
      ->capture_default_str();
  app.add_option("--timeout", timeout, "Seconds to wait for another rank")->capture_default_str();
}

Result<Parallelism> RankArguments::planned() const {
  Parallelism plan;
  if (!given()) return plan;
  MORACLE_TRY(const ParallelText text, ParallelText::parse(parallel));
  plan.ep_size = text.ep;
  if (by_load()) return plan;
  MORACLE_TRY(plan.placement, parse_placement(placement));
  return plan;
}

Status RankArguments::set_spread(ModelOptions& options) const {
  if (!given()) return {};
  MORACLE_TRY(const ParallelText text, ParallelText::parse(parallel));
  options.spread = text.spread;
  MORACLE_TRY(options.exchange, parse_exchange(exchange));
  options.tp_size = text.tp;
  options.lm_head_size = text.lm_head;
  if (moves_experts && !by_load()) return {};  // no copies before the first rebalance
  if (redundant_experts != 0 && !by_load()) {
    return Error{ErrorKind::kInvalidArgument, "", "--redundant-experts",
                 "--placement FILE with routing statistics: they say which experts are hot",
                 str("the placement is ", placement)};
  }
  options.num_redundant_experts = redundant_experts;
  return {};
}

bool RankArguments::by_load() const {
  return !parse_placement(placement);
}

Result<std::shared_ptr<const RoutingStatistics>> RankArguments::measured_load(
    bool has_slots) const {
  std::shared_ptr<const RoutingStatistics> none;
  if (!given() && placement != "linear" && !(has_slots && by_load())) {
    return Error{ErrorKind::kInvalidArgument, "", "--placement",
                 "--parallel, or a file together with --gpu-memory",
                 str("it is ", quote(placement), " for one process")};
  }
  if (!by_load()) return none;
  auto statistics = RoutingStatistics::open(placement);
  if (statistics) return std::make_shared<const RoutingStatistics>(*std::move(statistics));
  if (statistics.error().kind != ErrorKind::kIo) return statistics.error();
  return Error{ErrorKind::kInvalidArgument, "", "--placement",
               "linear, round-robin, or a file of --routing-statistics",
               str("it is ", quote(placement), ": ", statistics.error().fact)};
}

Status RankArguments::join(ModelOptions& options, std::string_view device) const {
  MORACLE_TRY(options.parallel, planned());
  MORACLE_CHECK(set_spread(options));
  MORACLE_TRY(RankOptions rank, launched_as(process_environment()));
  const int64_t size = options.parallel.ep_size;
  if (!given() && rank.size > 1) {
    return Error{ErrorKind::kInvalidArgument, "", "--parallel", str("ep=", rank.size),
                 str("the launcher started ", rank.size, " processes, and it is not given")};
  }
  if (rank.size != size) {
    return Error{
        ErrorKind::kInvalidArgument, "", "--parallel " + parallel,
        str(size, " processes: mpirun -n ", size, " moracle …"),
        rank.size == 1 ? "this process is alone" : str("the launcher started ", rank.size)};
  }
  if (size == 1) return {};
  rank.transport = transport;
  rank.timeout_seconds = timeout;
  MORACLE_TRY(job, open_group(rank));
  if (rank.rank > 0) {
    std::cout.rdbuf(&nowhere);
    std::cerr.rdbuf(&nowhere);
  }
  options.group = job;
  options.parallel.ep_rank = rank.rank;
  const Platform platform = options.device.platform;
  if (platform != Platform::kCpu && device == name(platform))
    options.device = device_of_rank(platform, rank);
  if (options.threads < 1) {
    MORACLE_TRY(options.threads, threads_of_rank(*job));
  }
  return {};
}

Status share_ids(const std::shared_ptr<Group>& group, std::vector<int32_t>& ids, int64_t from) {
  if (group == nullptr) return {};
  uint64_t count = ids.size();
  MORACLE_CHECK(group->broadcast(std::as_writable_bytes(std::span(&count, 1)), from, true));
  ids.resize(count);
  return group->broadcast(std::as_writable_bytes(std::span(ids)), from);
}

bool is_first_rank() {
  return job == nullptr || job->rank() == 0;
}

void tell_ranks(const Error& error) {
  if (job == nullptr || told) return;
  told = true;
  job->abort(error);
}

void leave_ranks(int exit_code) {
  if (exit_code != kDone)
    tell_ranks({ErrorKind::kCancelled, "", "", "", str("it ended with exit code ", exit_code)});
  job.reset();
}

std::string rank_prefix() {
  return job == nullptr ? "" : str("rank ", job->rank(), ": ");
}

std::ostream& errors() {
  static std::ostream stream(real_errors);
  return stream;
}

}  // namespace moracle::cli
