// How a call goes through a layer's experts:
//
//   prepare   weights or converts the tokens where the layer needs it, lists the rows of each
//             expert (RowPlan), and quantizes each token once for all of its experts
//   experts   GEMM 1 (w13), activation, quantization, GEMM 2 (w2), on rows sorted by expert
//   finalize  adds the rows of each token, weighted, or leaves them as the call wants them
//
// Every public function builds an ExpertsCall; State::run checks it, takes the device and runs it.
// Where the plan fuses the layer for this number of tokens, one FusedExperts does all three stages.
#include <algorithm>

#include "base/text.h"
#include "base/try.h"
#include "kernels/kernel_device.h"
#include "moe/checks.h"
#include "moe/layer_lock.h"
#include "moe/stage.h"

namespace moracle {

// A call while it runs, with the layer's scratch.
class FusedMoe::State::Pass {
 public:
  Pass(const State& layer, ExpertsCall&& call, Stream stream)
      : layer_(layer),
        plan_(layer.plan),
        ops_(kernel_device(layer.device()).ops()),
        call_(std::move(call)),
        stream_(stream),
        scratch_(carve_moe(plan_, layer.workspace->data())),
        by_ids_(call_.routing == ExpertsCall::Routing::kIds),
        fuses_(by_ids_ && call_.form != ExpertsCall::Input::kReady &&
               call_.result == ExpertsCall::Output::kTokens &&
               plan_.matrices[0].kernel->fuses(call_.num_tokens())) {}

  Status run() {
    MORACLE_CHECK(convert_tokens());
    if (fuses_)
      return layer_.fused_for(call_.num_tokens())->run(call_, expert_map(), scratch_, stream_);
    MORACLE_CHECK(plan_rows());
    MORACLE_TRY(GroupedRows input, quantize_tokens());
    if (plan_.matrices[1].kernel->combines) return run_combined(std::move(input));
    const Matrix y = scratch_.y.slice(0, input.num_rows);
    MORACLE_TRY(const GroupedRows intermediate, run_w13(input));
    MORACLE_CHECK(layer_.w2->run({intermediate, y}, stream_));
    MORACLE_CHECK(add_adapters(scratch_.activated.slice(0, y.rows), nullptr, false, y));
    return finalize(y);
  }

 private:
  const int32_t* expert_map() const { return layer_.expert_map.as<int32_t>(); }
  bool each_slot() const { return call_.result == ExpertsCall::Output::kSlots; }
  const float* weights() const { return each_slot() ? nullptr : call_.topk_weights; }

  Status convert_tokens();
  Status plan_rows();
  Result<GroupedRows> quantize_tokens();
  // Runs GEMM 1, activation and quantization of some rows. Returns the input of GEMM 2.
  Result<GroupedRows> run_w13(const GroupedRows& input);
  // Runs both GEMMs where the second one adds the rows of each token.
  Status run_combined(GroupedRows input);
  Status finalize(const Matrix& y);

  Status quantize_static(const Matrix& from, const int32_t* row_index, const GroupedLinear& linear,
                         const Rows& to);
  Status add_adapters(const Matrix& x, const int32_t* row_index, bool is_w13, const Matrix& y);
  // Returns the number of rows in the chunk that begins at `first`: whole experts where these fit.
  // If several chunks are needed, `left` becomes the exact number of rows from `first` on.
  int64_t next_chunk(int64_t first, int64_t& left) const;

  const State& layer_;
  const Plan& plan_;
  Ops& ops_;
  ExpertsCall call_;  // prepare replaces its tokens, and weights that it has applied
  const Stream stream_;
  MoeScratch scratch_;
  const bool by_ids_, fuses_;
};

// ---- prepare

Status FusedMoe::State::Pass::convert_tokens() {
  if (call_.form != ExpertsCall::Input::kTokens) return {};
  const LayerSpec& layer = plan_.layer;
  const Matrix hidden = call_.input.values, x = scratch_.hidden.slice(0, hidden.rows);
  if (layer.routing.weight_on_input) {
    MORACLE_CHECK(ops_.scale_rows(hidden, call_.topk_weights, x, stream_));
    call_.topk_weights = nullptr;
    call_.input.values = x;
  } else if (hidden.dtype != plan_.activation_dtype &&
             (layer.scheme.activation || call_.lora_ids != nullptr || fuses_)) {
    MORACLE_CHECK(ops_.convert(hidden, x, stream_));
    call_.input.values = x;
  }
  return {};
}

Status FusedMoe::State::Pass::plan_rows() {
  const int64_t num_local = plan_.experts.num_local();
  return by_ids_ ? ops_.plan_rows(call_.topk_ids, call_.num_tokens(), plan_.layer.top_k,
                                  plan_.layer.num_experts, expert_map(), num_local, scratch_.rows,
                                  stream_)
                 : ops_.plan_batched_rows(call_.expert_num_tokens, num_local, call_.expert_rows,
                                          scratch_.rows, stream_);
}

// Only static scales belong to experts: they need each row quantized by itself.
Result<GroupedRows> FusedMoe::State::Pass::quantize_tokens() {
  const Matrix& x = call_.input.values;
  GroupedRows rows{call_.input, scratch_.rows.row_token, scratch_.rows.expert_offsets,
                   x.rows * plan_.top_k()};
  if (call_.form != ExpertsCall::Input::kTokens) return rows;
  if (is_static(plan_.layer.scheme)) {
    rows.x = scratch_.input.first(rows.num_rows);
    rows.row_index = nullptr;
    MORACLE_CHECK(quantize_static(x, scratch_.rows.row_token, *layer_.w13, rows.x));
  } else {
    MORACLE_TRY(rows.x, prepare(x, plan_.layer.scheme.activation, scratch_.input, ops_, stream_));
  }
  return rows;
}

// ---- experts

Result<GroupedRows> FusedMoe::State::Pass::run_w13(const GroupedRows& input) {
  const LayerSpec& layer = plan_.layer;
  const std::optional<QuantKey>& key = layer.scheme.activation;
  const int64_t rows = input.num_rows;
  MORACLE_TRY(const GroupedRows sorted,
              gather(input, layer_.w13->weights(), scratch_.sorted_input, ops_, stream_));
  const Matrix activated = scratch_.activated.slice(0, rows);
  const bool quantized = plan_.matrices[0].kernel->quantizes;
  if (quantized) {
    const LinearCall::Quantize quantize{layer.activation, *key, scratch_.intermediate.first(rows)};
    MORACLE_CHECK(layer_.w13->run({sorted, activated, quantize}, stream_));
  } else if (plan_.matrices[0].kernel->activates) {
    MORACLE_CHECK(
        layer_.w13->run({sorted, activated, LinearCall::Activate{layer.activation}}, stream_));
  } else {
    const Matrix gate_up{scratch_.gate_up.data, scratch_.gate_up.dtype, rows, scratch_.gate_up.cols,
                         scratch_.gate_up.stride};
    MORACLE_CHECK(layer_.w13->run({sorted, gate_up}, stream_));
    MORACLE_CHECK(add_adapters(call_.input.values, scratch_.rows.row_token, true, gate_up));
    MORACLE_CHECK(
        ops_.activate(layer.activation, layer.intermediate_size, gate_up, activated, stream_));
  }
  GroupedRows intermediate{{activated, nullptr, 0},
                           nullptr,
                           scratch_.rows.expert_offsets,
                           input.num_rows,
                           input.first_row};
  if (quantized) {
    intermediate.x = scratch_.intermediate.first(rows);
  } else if (is_static(layer.scheme)) {
    intermediate.x = scratch_.intermediate.first(rows);
    MORACLE_CHECK(quantize_static(activated, nullptr, *layer_.w2, intermediate.x));
  } else if (key) {
    MORACLE_TRY(intermediate.x, prepare(activated, key, scratch_.intermediate, ops_, stream_));
  }
  return gather(intermediate, layer_.w2->weights(), scratch_.sorted_intermediate, ops_, stream_);
}

Status FusedMoe::State::Pass::run_combined(GroupedRows input) {
  const Matrix& output = call_.output;
  const bool in_place = output.dtype == scratch_.y.dtype;
  const Matrix sum = in_place ? output : scratch_.y.slice(0, call_.num_tokens());
  LinearCall::Combine combine{each_slot() ? scratch_.rows.row_slot : scratch_.rows.row_token,
                              scratch_.rows.row_slot, weights()};
  for (int64_t left = input.num_rows; left > 0 || !combine.add; left -= input.num_rows) {
    input.num_rows = next_chunk(input.first_row, left);
    MORACLE_TRY(const GroupedRows intermediate, run_w13(input));
    MORACLE_CHECK(layer_.w2->run({intermediate, sum, combine}, stream_));
    combine.add = true;
    input.first_row += input.num_rows;
  }
  return in_place ? Status() : ops_.convert(sum, output, stream_);
}

int64_t FusedMoe::State::Pass::next_chunk(int64_t first, int64_t& left) const {
  if (left <= plan_.chunk_rows) return left;
  // Only host kernels split rows into chunks, so the host may read the offsets here.
  const int32_t* const offsets = scratch_.rows.expert_offsets;
  const int32_t* const end = offsets + plan_.experts.num_local() + 1;
  left = std::min(left, end[-1] - first);
  if (left <= plan_.chunk_rows) return left;
  const int64_t whole_experts =
      std::upper_bound(offsets, end, first + plan_.chunk_rows)[-1] - first;
  return whole_experts > 0 ? whole_experts : plan_.chunk_rows;
}

Status FusedMoe::State::Pass::quantize_static(const Matrix& from, const int32_t* row_index,
                                              const GroupedLinear& linear, const Rows& to) {
  return ops_.quantize_static(from, row_index, scratch_.rows.expert_offsets,
                              plan_.experts.num_local(), linear.weights().input_scales.as<float>(),
                              *plan_.layer.scheme.activation, to, stream_);
}

Status FusedMoe::State::Pass::add_adapters(const Matrix& x, const int32_t* row_index, bool is_w13,
                                           const Matrix& y) {
  if (call_.lora_ids == nullptr) return {};
  const AdapterScratch& stacked = layer_.adapters;
  LoraTable table{is_w13 ? stacked.w13_a : stacked.w2_a,
                  is_w13 ? stacked.w13_b : stacked.w2_b,
                  plan_.experts.num_local(),
                  1,
                  plan_.lora_rank,
                  y.cols};
  if (is_w13) table.num_slices = plan_.layer.w13_rows() / plan_.layer.intermediate_size;
  return ops_.add_lora(x, row_index, scratch_.rows, call_.lora_ids, plan_.max_adapters, table, y,
                       stream_);
}

// ---- finalize

Status FusedMoe::State::Pass::finalize(const Matrix& y) {
  const int32_t* const slot_row = scratch_.rows.slot_row;
  if (call_.add) return call_.add({y, slot_row, weights(), call_.num_tokens(), plan_.top_k()});
  // A slot without a row becomes 0.
  return ops_.combine(y, slot_row, weights(), each_slot() ? 1 : plan_.top_k(), call_.output,
                      stream_);
}

Status FusedMoe::State::run(ExpertsCall call, Stream stream) const {
  MORACLE_CHECK(check_call(call, plan));
  if (call.num_tokens() == 0) return {};
  MORACLE_CHECK(check_pointers(call, plan));
  MORACLE_TRY(const LayerLock lock, LayerLock::take(*workspace, stream, error_scope));
  MORACLE_CHECK(check_workspace(*workspace, plan));
  return Pass(*this, std::move(call), stream).run();
}

Status FusedMoe::apply(const ConstMatrix& input, TopkIds topk_ids, TopkWeights topk_weights,
                       const Matrix& output, Stream stream, LoraIds lora_ids) {
  return state_->run({.input = {as_operand(input)},
                      .lora_ids = lora_ids.data,
                      .topk_ids = topk_ids.data,
                      .topk_weights = topk_weights.data,
                      .output = output},
                     stream);
}

Status FusedMoe::apply_chunked(const ConstMatrix& input, TopkIds topk_ids, TopkWeights topk_weights,
                               const Matrix& output, Stream stream, LoraIds lora_ids) {
  const Plan& plan = state_->plan;
  const Matrix hidden = as_operand(input);
  const int64_t most = plan.max_num_tokens, top_k = plan.layer.top_k;
  if (hidden.rows != output.rows) {
    return Error{ErrorKind::kInvalidArgument, "", plan.layer.name,
                 "the same number of rows in output and hidden",
                 str("they have ", output.rows, " and ", hidden.rows)};
  }
  if (hidden.rows <= most) return apply(input, topk_ids, topk_weights, output, stream, lora_ids);
  for (int64_t first = 0; first < hidden.rows; first += most) {
    const int64_t count = std::min(most, hidden.rows - first);
    const auto from = [first](auto* values, int64_t each) {
      return values == nullptr ? nullptr : values + first * each;
    };
    MORACLE_CHECK(apply(hidden.slice(first, count), {from(topk_ids.data, top_k)},
                        {from(topk_weights.data, top_k)}, output.slice(first, count), stream,
                        {from(lora_ids.data, 1)}));
  }
  return {};
}

Status FusedMoe::apply_rows(const ConstMatrix& input, TopkIds topk_ids, TopkWeights topk_weights,
                            const Matrix& rows, Stream stream, LoraIds lora_ids) {
  return state_->run({.input = {as_operand(input)},
                      .lora_ids = lora_ids.data,
                      .topk_ids = topk_ids.data,
                      .topk_weights = topk_weights.data,
                      .output = rows,
                      .result = ExpertsCall::Output::kSlots},
                     stream);
}

Status FusedMoe::apply_batched(const ConstMatrix& input, ExpertNumTokens num_tokens,
                               const Matrix& output, Stream stream, LoraIds lora_ids) {
  return state_->run({.input = {as_operand(input)},
                      .lora_ids = lora_ids.data,
                      .routing = ExpertsCall::Routing::kCounts,
                      .expert_num_tokens = num_tokens.data,
                      .expert_rows = state_->plan.max_num_tokens,
                      .output = output},
                     stream);
}

}  // namespace moracle
