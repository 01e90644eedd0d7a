#include "conformance/support.h"

#include <algorithm>
#include <string>
#include <utility>

#include "oracle/backend.h"

namespace moracle::conformance {
namespace support {
namespace {

/// One machine for each known GPU, with every CPU feature and unlimited memory.
std::vector<Machine> machines() {
  constexpr int64_t kPlenty = int64_t{1} << 50;
  std::vector<Machine> all(Machine::known().begin(), Machine::known().end());
  for (Machine& machine : all) {
    machine.cpu.isa = static_cast<Isa>(~uint32_t{0});
    machine.cpu.memory_bytes = kPlenty;
    for (GpuInfo& gpu : machine.gpus) gpu.memory_bytes = gpu.max_allocation_bytes = kPlenty;
  }
  return all;
}

/// A machine and the rows to check on it. All rows are checked on the first machine. GPU rows are
/// also checked on every other machine with such a GPU; CPUs are equal on all machines here.
struct Query {
  Machine machine;
  std::vector<Backend> rows;
};

const std::vector<Query>& queries() {
  static const std::vector<Query> kAll = [] {
    std::vector<Query> all;
    for (Machine& machine : machines()) {
      std::vector<Backend> rows;
      for (const Backend& backend : backends()) {
        const bool has_gpu =
            std::any_of(machine.gpus.begin(), machine.gpus.end(),
                        [&](const GpuInfo& gpu) { return gpu.platform == backend.platform; });
        if (!all.empty() && !has_gpu) continue;
        rows.push_back(backend);
      }
      if (!rows.empty()) all.push_back({std::move(machine), std::move(rows)});
    }
    return all;
  }();
  return kAll;
}

}  // namespace
}  // namespace support

Request plain_request(const Scheme& scheme) {
  return {.layer = {.name = "experts",
                    .num_experts = 128,
                    .hidden_size = 2048,
                    .intermediate_size = 768,
                    .top_k = 8,
                    .scheme = scheme},
          .max_num_tokens = 16};
}

std::map<std::string_view, std::vector<std::string_view>> objections(const Request& request) {
  using Rules = std::vector<std::string_view>;
  std::map<std::string_view, Rules> fewest;
  for (const support::Query& query : support::queries()) {
    for (const Verdict& verdict : select(request, query.machine, query.rows).considered) {
      Rules rules;
      for (const Reason& reason : verdict.reasons) {
        if (reason.rule != "build") rules.push_back(reason.rule);
      }
      const auto [kept, first] = fewest.try_emplace(verdict.backend->name, rules);
      if (!first && rules.size() < kept->second.size()) kept->second = std::move(rules);
    }
  }
  return fewest;
}

}  // namespace moracle::conformance
