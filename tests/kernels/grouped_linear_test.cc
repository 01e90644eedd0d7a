// Tests that a matrix runs each call in the first kernel that serves it, and that the kernels of
// each CPU backend serve the epilogues of their plan.
#include "kernels/grouped_linear.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "conformance/conformance.h"
#include "kernels/kernel_device.h"
#include "moracle/moe.h"
#include "oracle/backend.h"
#include "support/must.h"

namespace moracle::grouped_linear_test {
namespace {

using testing::must;

/// Serves up to `most_rows` grouped rows, or raw rows if `raw`. Records its number.
class Recorder : public LinearKernel {
 public:
  Recorder(const KernelWeights&, int number, int64_t most_rows, bool raw, std::vector<int>& ran)
      : number_(number), most_rows_(most_rows), raw_(raw), ran_(ran) {}
  bool serves(const LinearCall& call) const override {
    return raw_ ? call.from<LinearCall::Raw>() != nullptr
                : LinearKernel::serves(call) && call.from<GroupedRows>()->num_rows <= most_rows_;
  }
  Status run(const LinearCall&, Stream) override {
    ran_.push_back(number_);
    return {};
  }

 private:
  int number_;
  int64_t most_rows_;
  bool raw_;
  std::vector<int>& ran_;
};

LinearCall call_of(int64_t rows) {
  return {GroupedRows{{}, nullptr, nullptr, rows}, {}};
}

TEST(GroupedLinear, RunsFirstKernelThatServesCall) {
  std::vector<int> ran;
  GroupedLinear linear({});
  linear.add<Recorder>(0, 0, true, ran);
  linear.add<Recorder>(1, 4, false, ran);
  linear.add<Recorder>(2, 100, false, ran);
  for (const int64_t rows : {4, 5}) must(linear.run(call_of(rows), {}));
  must(linear.run({LinearCall::Raw{}, {}}, {}));
  EXPECT_EQ(ran, (std::vector<int>{1, 2, 0}));
}

TEST(GroupedLinear, RefusesCallThatNoKernelServes) {
  std::vector<int> ran;
  GroupedLinear linear({});
  linear.add<Recorder>(0, 4, false, ran);
  const LinearCall activates{GroupedRows{{}, nullptr, nullptr, 2}, {}, LinearCall::Activate{}};
  for (const LinearCall& call : {call_of(5), activates, {LinearCall::Raw{}, {}}}) {
    EXPECT_FALSE(linear.serves(call));
    const Status done = linear.run(call, {});
    ASSERT_FALSE(done);
    EXPECT_EQ(done.error().kind, ErrorKind::kInvalidArgument);
  }
  EXPECT_EQ(linear.run(activates, {}).error().fact, "it reads 2 rows as planned and activates");
  EXPECT_TRUE(ran.empty());
}

TEST(GroupedLinear, RefreshesDerivedBytesAfterReplacement) {
  int refreshed = 0;
  GroupedLinear linear({}, [&](const KernelWeights&, Stream) {
    ++refreshed;
    return Status();
  });
  EXPECT_EQ(refreshed, 0);
  must(linear.weights_replaced({}));
  EXPECT_EQ(refreshed, 1);
  EXPECT_TRUE(GroupedLinear({}).weights_replaced({}));
}

std::unique_ptr<GroupedLinear> make(DescribedMatrix&& from, const Plan& plan, size_t matrix,
                                    Device& device) {
  const Backend& row = *plan.backend;
  return must(row.kernels->make(must(convert(std::move(from), *row.layout, device)),
                                *plan.matrices[matrix].kernel, device));
}

/// True if `linear` serves grouped rows with this epilogue.
template <class Output>
bool serves(const GroupedLinear& linear, const Output& output) {
  return linear.serves({GroupedRows{{}, nullptr, nullptr, 1}, {}, output});
}

TEST(CpuRows, ServeEpiloguesOfTheirPlan) {
  const std::shared_ptr<Device> device = *open_device("cpu", 2);
  for (const char* const scheme : {"bf16", "int4-w4a16-g32", "int8-w8a8", "mxfp8-w8a8"}) {
    // With 40 gates, gates and outputs share a panel of 16 rows.
    for (const int64_t intermediate : {64, 40}) {
      const LayerSpec spec{.name = "experts",
                           .num_experts = 2,
                           .hidden_size = 64,
                           .intermediate_size = intermediate,
                           .top_k = 1,
                           .scheme = *parse_scheme(scheme)};
      for (const Backend& row : backends()) {
        if (row.platform != Platform::kCpu) continue;
        Request request{.layer = spec};
        request.backend = row.name;
        const Selection selection = select(request, Machine::here());
        if (!selection.plan) continue;
        SCOPED_TRACE(::testing::Message() << row.name << ", " << scheme << ", " << intermediate);
        DescribedWeights weights = conformance::random_weights(spec, 1);
        const auto w13 = make(std::move(weights.w13), *selection.plan, 0, *device);
        const auto w2 = make(std::move(weights.w2), *selection.plan, 1, *device);
        const KernelPlan &first = *selection.plan->matrices[0].kernel,
                         &second = *selection.plan->matrices[1].kernel;
        EXPECT_TRUE(serves(*w13, LinearCall::Store{}));
        EXPECT_EQ(serves(*w13, LinearCall::Activate{}), first.activates);
        EXPECT_EQ(serves(*w13, LinearCall::Quantize{}), first.quantizes);
        EXPECT_EQ(serves(*w2, LinearCall::Combine{}), second.combines);
        EXPECT_FALSE(serves(*w2, LinearCall::Activate{}));
        EXPECT_FALSE(serves(*w2, LinearCall::Route{}));
        EXPECT_FALSE(w2->serves({LinearCall::Raw{}, {}}));
        EXPECT_FALSE(w2->serves({NormedInput{}, {}}));
      }
    }
  }
}

/// Some rows of codes and scales in host memory.
struct HostRows {
  std::vector<int8_t> codes;
  std::vector<float> scales;
  Rows rows;

  HostRows(int64_t count, int64_t cols) : codes(count * cols), scales(count) {
    rows = {{codes.data(), DType::kI8, count, cols, cols}, scales.data(), 1};
  }
};

// Many rows of several experts, so that threads take experts and reuse their floats' memory.
TEST(CpuRows, QuantizeAsOpsDoWithManyRows) {
  constexpr int64_t kRows = 400, kExperts = 6, kAll = kRows * kExperts, kCols = 64;
  const std::shared_ptr<Device> device = *open_device("cpu", 2);
  const LayerSpec spec{.name = "experts",
                       .num_experts = kExperts,
                       .hidden_size = kCols,
                       .intermediate_size = kCols,
                       .top_k = 1,
                       .scheme = *parse_scheme("int8-w8a8")};
  std::mt19937 draw(5);
  std::normal_distribution<float> normal;
  std::vector<float> floats(kAll * kCols);
  for (float& value : floats) value = normal(draw);
  std::vector<int32_t> offsets;
  for (int64_t e = 0; e <= kExperts; ++e) offsets.push_back(static_cast<int32_t>(e * kRows));
  const auto matrix = [&](std::vector<float>& values) {
    return Matrix{values.data(), DType::kF32, kAll, kCols, kCols};
  };
  const QuantKey key = *spec.scheme.activation;
  HostRows x(kAll, kCols);
  must(kernel_device(*device).ops().quantize(matrix(floats), key, x.rows, {}));
  const GroupedRows rows{x.rows, nullptr, offsets.data(), kAll};
  int tried = 0;
  for (const Backend& row : backends()) {
    if (row.platform != Platform::kCpu) continue;
    Request request{.layer = spec, .max_num_tokens = kAll};
    request.backend = row.name;
    const Selection selection = select(request, Machine::here());
    if (!selection.plan || !selection.plan->matrices[0].kernel->quantizes) continue;
    SCOPED_TRACE(row.name);
    ++tried;
    const auto w13 = make(conformance::random_weights(spec, 1).w13, *selection.plan, 0, *device);
    std::vector<float> activated(kAll * kCols), scratch(kAll * kCols);
    HostRows wanted(kAll, kCols), codes(kAll, kCols);
    must(w13->run({rows, matrix(activated), LinearCall::Activate{}}, {}));
    must(kernel_device(*device).ops().quantize(matrix(activated), key, wanted.rows, {}));
    must(w13->run({rows, matrix(scratch), LinearCall::Quantize{{}, key, codes.rows}}, {}));
    EXPECT_EQ(codes.codes, wanted.codes);
    EXPECT_EQ(codes.scales, wanted.scales);
  }
  EXPECT_GT(tried, 0);
}

}  // namespace
}  // namespace moracle::grouped_linear_test
