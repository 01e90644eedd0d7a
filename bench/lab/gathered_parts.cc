// Times the parts of a gathered layer separately, each in a graph, on several
// GPUs, for each exchange in turn. On each rank:
// RANK=r WORLD_SIZE=n MASTER_PORT=p gathered_parts shape scheme:tokens…
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <random>

#include "base/text.h"
#include "base/try.h"
#include "bench/bench.h"
#include "bench/rank_timing.h"
#include "kernels/ops.h"
#include "moe/moe_access.h"
#include "moracle/moracle.h"
#include "oracle/carve.h"
#include "parallel/dispatch/gathered_experts.h"

namespace moracle {
namespace {

constexpr int64_t kPasses = 4;

int number(const char* name, int otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoi(text);
}

struct Lab {
  std::shared_ptr<Group> group;
  std::shared_ptr<Device> device;
  std::vector<std::unique_ptr<Exchange>> exchanges;
  std::vector<Buffer> kept;

  template <class T = std::byte>
  T* take(int64_t count) {
    kept.push_back(*device->allocate(static_cast<size_t>(std::max<int64_t>(count, 1)) * sizeof(T)));
    return kept.back().as<T>();
  }
  template <class T>
  T* put(const std::vector<T>& values) {
    T* const to = take<T>(static_cast<int64_t>(values.size()));
    static_cast<void>(device->upload(to, values.data(), values.size() * sizeof(T)).ok());
    static_cast<void>(device->synchronize().ok());
    return to;
  }
  Matrix tokens(int64_t rows, int64_t cols) {
    std::mt19937 engine(static_cast<uint32_t>(group->rank() + 1));
    std::normal_distribution<float> normal;
    std::vector<float> floats(rows * cols);
    for (float& value : floats) value = normal(engine);
    const Matrix x{take(rows * cols * 2), DType::kBF16, rows, cols, cols};
    static_cast<void>(kernel_device(*device)
                          .ops()
                          .convert({put(floats), DType::kF32, rows, cols, cols}, x, {})
                          .ok());
    return x;
  }
  Result<double> time(const std::function<Status()>& call) {
    MORACLE_CHECK(call());
    MORACLE_TRY(const std::unique_ptr<Graph> graph, device->record([&]() -> Status {
      for (int64_t i = 0; i < kPasses; ++i) MORACLE_CHECK(call());
      return {};
    }));
    MORACLE_TRY(const double us,
                bench::time_together([&] { return graph->replay(); }, 4, *group, *device));
    return us / kPasses;
  }
};

Result<FusedMoe> make(Lab& lab, const LayerSpec& spec, int64_t tokens,
                      const Parallelism& parallel) {
  Request request;
  request.layer = spec;
  request.parallel = parallel;
  request.max_num_tokens = tokens;
  request.platform = Platform::kCuda;
  const Selection selection = select(request, Machine::here());
  MORACLE_CHECK(selection.chosen());
  return FusedMoe::make(bench::random_layer(spec, 1), selection,
                        std::make_shared<Workspace>(lab.device));
}

Status run(Lab& lab, const std::string& shape_name, const std::string& scheme_name, int64_t count) {
  const int64_t size = lab.group->size(), all = count * size;
  MORACLE_TRY(const Scheme scheme, parse_scheme(scheme_name));
  MORACLE_TRY(const bench::LayerShape shape, bench::find_shape(shape_name));
  const LayerSpec spec = bench::layer_of(shape, scheme);
  LayerSpec part_spec = spec;
  part_spec.num_experts /= size, part_spec.top_k /= size;
  MORACLE_TRY(FusedMoe whole, make(lab, spec, count, {}));
  MORACLE_TRY(FusedMoe part, make(lab, part_spec, all, {}));
  Parallelism parallel;
  parallel.ep_size = size, parallel.ep_rank = lab.group->rank();
  MORACLE_TRY(FusedMoe moe, make(lab, spec, all, parallel));
  std::vector<std::unique_ptr<GatheredExperts>> gathers;
  for (const auto& exchange : lab.exchanges)
    gathers.push_back(std::make_unique<GatheredExperts>(*lab.group, *exchange, *lab.device));
  Ops& ops = kernel_device(*lab.device).ops();
  const int64_t hidden = spec.hidden_size, top_k = spec.top_k;
  const Matrix x = lab.tokens(count, hidden), all_x = lab.tokens(all, hidden);
  const Matrix y = lab.tokens(count, hidden), all_y = lab.tokens(all, hidden);
  const auto routed = bench::random_routings(spec, all, 7).front();
  const auto of_part = bench::random_routings(part_spec, all, 9).front();
  int32_t* const ids = lab.put(routed.ids);
  float* const weights = lab.put(routed.weights);
  int32_t* const part_ids = lab.put(of_part.ids);
  float* const part_weights = lab.put(of_part.weights);
  const int64_t mine = lab.group->rank() * count * top_k;
  std::string line = str(shape_name, " ", scheme_name, " ", count, ":");
  const auto show = [&](const std::string& what, const std::function<Status()>& call) -> Status {
    MORACLE_TRY(const double us, lab.time(call));
    char text[64];
    std::snprintf(text, sizeof text, " %s %.1f", what.c_str(), us);
    line += text;
    return {};
  };
  for (int round = 0; round < 2; ++round) {
    MORACLE_CHECK(show("| one_gpu", [&] { return whole.apply(x, {ids}, {weights}, y); }));
    for (size_t i = 0; i < gathers.size(); ++i) {
      MORACLE_CHECK(show(str("gathered_", lab.exchanges[i]->name()), [&] {
        return gathers[i]->run(moe, {}, x, {ids + mine}, {weights + mine}, y, {});
      }));
    }
    MORACLE_CHECK(show("experts_alone",
                       [&] { return part.apply(all_x, {part_ids}, {part_weights}, all_y); }));
    MORACLE_CHECK(show("experts_with_foreign_ids",
                       [&] { return moe.apply(all_x, {ids}, {weights}, all_y); }));
  }
  const Rows form = ready_form(moe.plan());
  Rows own{x, nullptr, 0}, gathered{all_x, nullptr, 0};
  const bool codes = form.values.cols > 0;
  if (codes) {
    const auto rows_of = [&](int64_t rows) {
      return Rows{
          {lab.take(rows * hidden), form.values.dtype, rows, form.values.cols, form.values.cols},
          lab.take<float>(rows * form.num_scales),
          form.num_scales};
    };
    own = rows_of(count), gathered = rows_of(all);
    const QuantKey key = *spec.scheme.activation;
    MORACLE_CHECK(ops.quantize(all_x, key, gathered, {}));
    MORACLE_CHECK(show("| quantize_own", [&] { return ops.quantize(x, key, own, {}); }));
    MORACLE_CHECK(show("quantize_all", [&] { return ops.quantize(all_x, key, gathered, {}); }));
    MORACLE_CHECK(show("experts_of_codes", [&] {
      return MoeAccess::run(moe,
                            {.input = gathered,
                             .form = ExpertsCall::Input::kReady,
                             .topk_ids = ids,
                             .topk_weights = weights,
                             .output = all_y},
                            {});
    }));
  }
  const auto row_bytes = static_cast<size_t>(own.values.cols * bits(own.values.dtype) / 8);
  auto* const all_ids = lab.take<int32_t>(all * top_k);
  auto* const all_weights = lab.take<float>(all * top_k);
  auto* const all_scales = lab.take<float>(all * std::max<int64_t>(own.num_scales, 1));
  auto* const rows_there = lab.take(all * static_cast<int64_t>(row_bytes));
  const Exchange::Gathered rows{own.values.data, count * row_bytes, rows_there};
  std::vector<Exchange::Gathered> parts{
      rows,
      {ids + mine, static_cast<size_t>(count * top_k * 4), all_ids},
      {weights + mine, static_cast<size_t>(count * top_k * 4), all_weights}};
  if (codes)
    parts.push_back({own.scales, static_cast<size_t>(count * own.num_scales * 4), all_scales});
  for (const auto& exchange : lab.exchanges) {
    MORACLE_CHECK(show(str("| ", exchange->name(), " gather_rows"), [&] {
      return exchange->all_gather({&rows, 1}, {});
    }));
    MORACLE_CHECK(show("gather_all", [&] { return exchange->all_gather(parts, {}); }));
    MORACLE_CHECK(show("reduce_scatter", [&] { return exchange->reduce_scatter(all_y, y, {}); }));
  }
  // The row plan and the weighted sums that the experts' time contains.
  const int64_t slots = all * top_k;
  const RowPlan plan{lab.take<int32_t>(spec.num_experts + 1), lab.take<int32_t>(slots),
                     lab.take<int32_t>(slots), lab.take<int32_t>(slots)};
  const ExpertMap& map = moe.plan().experts;
  int32_t* const local = lab.put(map.local());
  MORACLE_CHECK(show("| plan_rows", [&] {
    return ops.plan_rows(ids, all, top_k, spec.num_experts, local, map.num_local(), plan, {});
  }));
  const Matrix results{lab.take(slots / size * 2 * hidden * 2), DType::kBF16, slots / size * 2,
                       hidden, hidden};
  MORACLE_CHECK(show(
      "combine", [&] { return ops.combine(results, plan.slot_row, weights, top_k, all_y, {}); }));
  const Exchange::RowOrder order{lab.take<int32_t>(slots), lab.take<float>(slots)};
  for (const auto& exchange : lab.exchanges) {
    if (!exchange->fuses_combine(y)) continue;
    MORACLE_CHECK(show("combine_and_scatter", [&] {
      return exchange->combine_scatter({results, plan.slot_row, weights, all, top_k}, order, y, {});
    }));
  }
  const RowPlan part_plan{lab.take<int32_t>(spec.num_experts + 1), lab.take<int32_t>(slots),
                          lab.take<int32_t>(slots), lab.take<int32_t>(slots)};
  MORACLE_CHECK(show("plan_rows_alone", [&] {
    return ops.plan_rows(part_ids, all, part_spec.top_k, part_spec.num_experts, nullptr,
                         part_spec.num_experts, part_plan, {});
  }));
  MORACLE_CHECK(show("combine_alone", [&] {
    return ops.combine(results, part_plan.slot_row, part_weights, part_spec.top_k, all_y, {});
  }));
  std::printf("rank %d: %s\n", static_cast<int>(lab.group->rank()), line.c_str());
  std::fflush(stdout);
  lab.kept.clear();
  return {};
}

Status lab_main(const std::string& shape, const std::vector<std::string>& layers) {
  RankOptions options;
  options.rank = options.local_rank = number("RANK", 0);
  options.size = options.local_size = number("WORLD_SIZE", 1);
  options.transport = "tcp";
  options.address = "127.0.0.1";
  options.port = number("MASTER_PORT", 29511);
  options.timeout_seconds = 60;
  Lab lab;
  MORACLE_TRY(lab.group, open_group(options));
  MORACLE_TRY(lab.device, open_device(str("cuda:", options.rank), {}));
  for (const char* const name : {"nccl", "cuda-peer"}) {
    MORACLE_TRY(const ExchangeRow* const row, parse_exchange(name));
    MORACLE_TRY(std::unique_ptr<Exchange> exchange, open_exchange(lab.group, lab.device, row));
    lab.exchanges.push_back(std::move(exchange));
  }
  for (const std::string& layer : layers) {
    const size_t colon = layer.find(':');
    MORACLE_CHECK(run(lab, shape, layer.substr(0, colon), std::stoll(layer.substr(colon + 1))));
  }
  return {};
}

}  // namespace
}  // namespace moracle

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  const moracle::Status done = moracle::lab_main(argv[1], {argv + 2, argv + argc});
  if (done) return 0;
  std::fprintf(stderr, "%s\n", done.error().to_string().c_str());
  return 1;
}
