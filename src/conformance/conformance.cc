// Runs one case: queries the oracle, makes the layer as a user would, runs it, compares.
#include "conformance/conformance.h"

#include <algorithm>
#include <cmath>

#include "base/text.h"
#include "base/try.h"

namespace moracle::conformance {

Request request_of(const Case& c) {
  Request request;
  request.layer = {.name = "case",
                   .num_experts = c.shape.num_experts,
                   .hidden_size = c.shape.hidden_size,
                   .intermediate_size = c.shape.intermediate_size,
                   .top_k = c.shape.top_k,
                   .scheme = c.scheme};
  request.max_num_tokens = std::max<int64_t>(c.num_tokens, 1);
  request.backend = c.backend;
  find_variant(c.variant)->change(request);
  return request;
}

namespace {

// What one rank needs, and the output to which it adds the results of its experts.
struct Run {
  const Request& request;
  const Variant& variant;
  const Inputs& in;
  const std::vector<LoraWeights>& adapters;
  uint64_t seed;
  std::shared_ptr<Device> device;
  std::vector<double> sum;

  Status add_rank(const Selection& selection);

 private:
  Result<FusedMoe> make(const Selection& selection);
  Status apply(FusedMoe& moe);
  Status apply_batched(FusedMoe& moe);
  template <class Value>
  Result<Buffer> upload(const std::vector<Value>& host) {
    const size_t bytes = host.size() * sizeof(Value);
    MORACLE_TRY(Buffer buffer, device->allocate(bytes));
    MORACLE_CHECK(device->upload(buffer.data(), host.data(), bytes));
    return buffer;
  }
  Result<std::vector<float>> download(const Buffer& buffer) {
    std::vector<float> host(buffer.bytes() / sizeof(float));
    MORACLE_CHECK(device->download(host.data(), buffer.data(), buffer.bytes()));
    MORACLE_CHECK(device->synchronize());
    return host;
  }
  int64_t hidden_size() const { return request.layer.hidden_size; }
  int64_t num_tokens() const { return static_cast<int64_t>(in.hidden.size()) / hidden_size(); }
};

Result<FusedMoe> Run::make(const Selection& selection) {
  const uint64_t first = variant.reload ? seed + 1000 : seed;
  MORACLE_TRY(FusedMoe moe,
              FusedMoe::make(random_weights(request.layer, first), selection, device));
  if (variant.reload) {
    MORACLE_TRY(PackedWeights packed, moe.pack(random_weights(request.layer, seed)));
    MORACLE_CHECK(moe.swap(std::move(packed)));
  }
  for (size_t i = 0; i < adapters.size(); ++i)
    MORACLE_CHECK(moe.set_adapter(static_cast<int32_t>(i), adapters[i]));
  return moe;
}

Status Run::apply(FusedMoe& moe) {
  MORACLE_TRY(Buffer hidden, upload(in.hidden));
  MORACLE_TRY(Buffer ids, upload(in.ids));
  MORACLE_TRY(Buffer weights, upload(in.weights));
  MORACLE_TRY(Buffer lora_ids, upload(in.lora_ids));
  MORACLE_TRY(Buffer output, upload(std::vector<float>(in.hidden.size(), NAN)));
  const int64_t rows = num_tokens(), cols = hidden_size();
  MORACLE_CHECK(moe.apply(Matrix::f32(hidden.as<float>(), rows, cols), {ids.as<int32_t>()},
                          {weights.as<float>()}, Matrix::f32(output.as<float>(), rows, cols), {},
                          {lora_ids.as<int32_t>()}));
  MORACLE_TRY(const std::vector<float> got, download(output));
  for (size_t i = 0; i < got.size(); ++i) sum[i] += got[i];
  return {};
}

// Sorts the tokens by expert as a dispatch would, then weights and sums as a combine would. Rows
// beyond an expert's count are NaN and must come out as 0.
Status Run::apply_batched(FusedMoe& moe) {
  const Plan& plan = moe.plan();
  const int64_t slots = plan.max_slots(), most = plan.max_num_tokens, cols = hidden_size();
  std::vector<float> batched(slots * cols, NAN);
  std::vector<int32_t> counts(plan.experts.num_local()), lora(in.lora_ids.empty() ? 0 : slots, -1);
  std::vector<int64_t> slot_of(in.ids.size(), -1);
  for (size_t i = 0; i < in.ids.size(); ++i) {
    const int32_t local = in.ids[i] < 0 ? -1 : plan.experts.local()[in.ids[i]];
    if (local < 0) continue;
    const int64_t token = static_cast<int64_t>(i) / request.layer.top_k;
    slot_of[i] = local * most + counts[local]++;
    std::copy_n(in.hidden.begin() + token * cols, cols, batched.begin() + slot_of[i] * cols);
    if (!lora.empty()) lora[slot_of[i]] = in.lora_ids[token];
  }
  MORACLE_TRY(Buffer hidden, upload(batched));
  MORACLE_TRY(Buffer num_tokens, upload(counts));
  MORACLE_TRY(Buffer lora_ids, upload(lora));
  MORACLE_TRY(Buffer output, upload(std::vector<float>(batched.size(), NAN)));
  MORACLE_CHECK(moe.apply_batched(
      Matrix::f32(hidden.as<float>(), slots, cols), {num_tokens.as<int32_t>()},
      Matrix::f32(output.as<float>(), slots, cols), {}, {lora_ids.as<int32_t>()}));
  MORACLE_TRY(const std::vector<float> got, download(output));
  for (int64_t slot = 0; slot < slots; ++slot) {
    if (slot % most < counts[slot / most]) continue;
    for (int64_t c = 0; c < cols; ++c) {
      if (got[slot * cols + c] == 0) continue;
      return Error{ErrorKind::kUnsupported, "", "batched output", "0 in rows without a token",
                   str("slot ", slot, " has ", got[slot * cols + c])};
    }
  }
  for (size_t i = 0; i < in.ids.size(); ++i) {
    const int64_t token = static_cast<int64_t>(i) / request.layer.top_k;
    for (int64_t c = 0; slot_of[i] >= 0 && c < cols; ++c)
      sum[token * cols + c] += static_cast<double>(in.weights[i]) * got[slot_of[i] * cols + c];
  }
  return {};
}

Status Run::add_rank(const Selection& selection) {
  MORACLE_TRY(FusedMoe moe, make(selection));
  return request.parallel.format == ActivationFormat::kBatched ? apply_batched(moe) : apply(moe);
}

Outcome compare(const Case& c, const Expected& want, std::span<const double> got) {
  Outcome outcome;
  for (size_t i = 0; i < got.size(); ++i) {
    // Results below the smallest normal number may be flushed on some devices.
    const double bound = want.bound[i] + 0x1p-126, error = std::fabs(got[i] - want.output[i]);
    outcome.worst = std::max(outcome.worst, error / bound);
    if (error <= bound || outcome.kind == Outcome::kFailed) continue;
    outcome.kind = Outcome::kFailed;
    outcome.message = str("token ", static_cast<int64_t>(i) / c.shape.hidden_size, ", column ",
                          static_cast<int64_t>(i) % c.shape.hidden_size, ": is ", got[i],
                          ", must be ", want.output[i], " within ", bound, "; ", reproducer(c));
  }
  return outcome;
}

}  // namespace

Outcome run(const Case& c, const std::shared_ptr<Device>& device, const Machine* machine) {
  Request request = request_of(c);
  request.platform = device->platform();
  if (const auto named = parse_device(device->name());
      named && device->platform() != Platform::kCpu)
    request.device_index = named->index;
  // Derive the seed from the case, so that the reproducer uses the same numbers.
  const uint64_t seed = std::hash<std::string>{}(
      reproducer({"", c.scheme, c.shape, c.num_tokens, c.spread, c.variant}));
  Inputs in = random_inputs(request, c.num_tokens, c.spread, seed);
  std::vector<LoraWeights> adapters = random_adapters(request, seed);
  round_to(device->activation_dtype(), in, adapters);
  Run all{request,
          *find_variant(c.variant),
          in,
          adapters,
          seed,
          device,
          std::vector<double>(in.hidden.size())};
  // Query the machine once: a driver's answer about its GPUs takes longer than a small case.
  static const Machine here = Machine::here();
  Precision precision;
  for (int64_t rank = 0; rank < request.parallel.ep_size; ++rank) {
    request.parallel.ep_rank = rank;
    const Selection selection = select(request, machine != nullptr ? *machine : here);
    if (!selection.plan) return {Outcome::kRefused, selection.chosen().error().to_string(), 0};
    precision = precision_of(*selection.plan);
    if (const Status added = all.add_rank(selection); !added)
      return {Outcome::kFailed, added.error().to_string() + "; " + reproducer(c), 0};
  }
  const Expected want = expected(request.layer, random_weights(request.layer, seed), in.hidden,
                                 in.ids, in.weights, adapters, in.lora_ids, precision);
  return compare(c, want, all.sum);
}

}  // namespace moracle::conformance
