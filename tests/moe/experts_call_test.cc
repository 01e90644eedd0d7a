// Every combination of input, routing and output of an ExpertsCall gives the bits of
// FusedMoe::apply.
#include "kernels/ops.h"
#include "moe/layer_on_rows.h"
#include "moe/moe_access.h"
#include "oracle/kernel_plan.h"

namespace moracle::experts_call_test {
namespace {

using testing::must;
using testing::TokenBatch;

constexpr int64_t kTokens = 11, kExperts = 5, kTopK = 2, kSlots = kTokens * kTopK;

// A layer on one row, with a batch of tokens.
struct Case {
  std::string name;
  std::shared_ptr<Device> device;
  FusedMoe moe;
  TokenBatch batch;

  const Plan& plan() const { return moe.plan(); }
  int64_t hidden_size() const { return plan().layer.hidden_size; }
  Ops& ops() const { return kernel_device(*device).ops(); }
  ExpertsCall call(std::vector<float>& output) {
    output.assign(kTokens * hidden_size(), NAN);
    return {.input = {Matrix::f32(batch.hidden.data(), kTokens, hidden_size())},
            .topk_ids = batch.ids.data(),
            .topk_weights = batch.weights.data(),
            .output = Matrix::f32(output.data(), kTokens, hidden_size())};
  }
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const char* text : {"int8-w8a8", "int4-w4a8-g128", "fp8-w8a8-block128x128", "bf16"}) {
    LayerSpec spec = testing::odd_layer(*parse_scheme(text), kExperts, kTopK);
    spec.hidden_size = 128, spec.intermediate_size = 256;
    for (const std::string& row : testing::cpu_rows(spec)) {
      const Selection selection =
          select({.layer = spec, .max_num_tokens = kTokens, .backend = row}, Machine::here());
      std::shared_ptr<Device> device = must(open_device("cpu", 2));
      FusedMoe moe = must(FusedMoe::make(conformance::random_weights(spec, 3), selection, device));
      TokenBatch batch = testing::random_batch(spec, kTokens);
      for (size_t i = 0; i < batch.ids.size(); i += 5) batch.ids[i] = -1;
      all.push_back({row + ", " + text, std::move(device), std::move(moe), std::move(batch)});
    }
  }
  return all;
}

// Activations in one form, in separate memory.
struct FormRows {
  std::vector<std::byte> values;
  std::vector<float> scales;
  Rows rows;
  FormRows(const Rows& form, int64_t count)
      : values(count * form.values.cols * bits(form.values.dtype) / 8),
        scales(count * form.num_scales),
        rows{{values.data(), form.values.dtype, count, form.values.cols, form.values.cols},
             form.num_scales > 0 ? scales.data() : nullptr,
             form.num_scales} {}
};

TEST(ExpertsCall, ReadyAndPreparedInputGivesBitsOfTokens) {
  int compared = 0;
  for (Case& c : cases()) {
    SCOPED_TRACE(c.name);
    const Rows form = ready_form(c.plan());
    if (form.values.cols == 0) continue;
    const std::vector<float> want = testing::output_of(c.moe, c.batch);
    std::vector<float> got;
    ExpertsCall ready = c.call(got);
    FormRows codes(form, kTokens);
    must(c.ops().quantize(ready.input.values, *c.plan().layer.scheme.activation, codes.rows, {}));
    ready.input = codes.rows, ready.form = ExpertsCall::Input::kReady;
    must(MoeAccess::run(c.moe, ready, {}));
    EXPECT_EQ(got, want);

    ExpertsCall prepared = c.call(got);
    FormRows there(MoeAccess::prepared_form(c.moe, kTokens), kTokens);
    must(MoeAccess::prepare(c.moe, prepared.input.values, kTokens, there.rows, {}));
    prepared.input = there.rows, prepared.form = ExpertsCall::Input::kPrepared;
    must(MoeAccess::run(c.moe, prepared, {}));
    EXPECT_EQ(got, want);
    ++compared;
  }
  EXPECT_GE(compared, 4);
}

TEST(ExpertsCall, SlotsAndAddedRowsCombineToBitsOfTokens) {
  int added = 0;
  for (Case& c : cases()) {
    SCOPED_TRACE(c.name);
    const std::vector<float> want = testing::output_of(c.moe, c.batch);
    std::vector<float> got;
    ExpertsCall slots = c.call(got);
    const Matrix sums = slots.output;
    std::vector<float> by_slot(kSlots * c.hidden_size(), NAN);
    slots.output = Matrix::f32(by_slot.data(), kSlots, c.hidden_size());
    slots.result = ExpertsCall::Output::kSlots;
    must(MoeAccess::run(c.moe, slots, {}));
    for (size_t i = 0; i < c.batch.ids.size(); ++i) {
      const bool is_zero = by_slot[i * c.hidden_size()] == 0.0f;
      EXPECT_EQ(is_zero, c.batch.ids[i] == -1) << "slot " << i;
    }
    if (c.plan().matrices[1].kernel->combines) continue;
    ExpertsCall add = c.call(got);
    add.output = {};
    add.add = [&](const ExpertRows& rows) {
      return c.ops().combine(rows.values, rows.slot_row, rows.weights, rows.top_k, sums, {});
    };
    must(MoeAccess::run(c.moe, add, {}));
    EXPECT_EQ(got, want);
    ++added;
  }
  EXPECT_GE(added, 4);
}

}  // namespace
}  // namespace moracle::experts_call_test
