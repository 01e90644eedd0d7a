// Tests that weights are packed in the layout of the chosen backend, independent of other GPUs. The
// machine is made up: this CPU and an Intel GPU, whose backends have other layouts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "conformance/conformance.h"
#include "kernels/kernels.h"
#include "oracle/backend.h"
#include "support/device.h"
#include "support/must.h"

namespace moracle::layout_of_row_test {
namespace {

using testing::must;
using Bytes = std::vector<std::byte>;

Bytes bytes_of(const KernelWeights& weights, Device& device) {
  Bytes bytes(weights.buffer.bytes());
  must(device.download(bytes.data(), weights.buffer.data(), bytes.size()));
  must(device.synchronize());
  return bytes;
}

/// The weights of the layers that make_recorder made.
std::vector<Bytes> packed;

Result<std::unique_ptr<GroupedLinear>> make_recorder(KernelWeights&& weights, const KernelPlan&,
                                                     Device& device) {
  packed.push_back(bytes_of(weights, device));
  return std::make_unique<GroupedLinear>(std::move(weights));
}

/// The backend table with its plans; all kernels are replaced by recorders.
class RecordingTable {
 public:
  RecordingTable() : rows_(backends().begin(), backends().end()), kernels_(rows_.size()) {
    for (size_t i = 0; i < rows_.size(); ++i) {
      kernels_[i] = {rows_[i].kernels->plan, make_recorder};
      rows_[i].kernels = &kernels_[i];
    }
  }
  std::span<const Backend> rows() const { return rows_; }

 private:
  std::vector<Backend> rows_;
  std::vector<Kernels> kernels_;
};

Machine with_intel_gpu() {
  Machine machine = Machine::here();
  machine.gpus = must(Machine::find("arc-b580")).gpus;
  machine.every_platform = true;
  return machine;
}

/// Experts that the rows for Intel GPUs serve.
Request request_for(const Scheme& scheme, Platform platform, std::string_view row = "auto") {
  Request request = conformance::request_of({"", scheme, {4, 64, 32, 2}, 3});
  request.platform = platform;
  request.backend = row;
  return request;
}

const Scheme kInt4{int4_static_group(32), {}}, kFp8{kFp8StaticChannelSym, {}};

/// Makes the layer as selected and compares its weights with those of the row's layout. False: the
/// row does not serve the layer on this CPU.
bool has_layout_of_row(const Request& request, const RecordingTable& table,
                       std::shared_ptr<Device> device) {
  const Selection selection = select(request, with_intel_gpu(), table.rows());
  if (!selection.plan) return false;
  const Plan& plan = *selection.plan;
  SCOPED_TRACE(::testing::Message() << plan.backend->name << ", " << name(request.layer.scheme));
  const Layout& layout = *plan.backend->layout;
  EXPECT_THAT(layout.name, ::testing::Not(::testing::AnyOf("rows16", "columns16")));
  EXPECT_EQ(plan.layout, layout.name);
  packed.clear();
  must(FusedMoe::make(conformance::random_weights(request.layer, 7), selection, device));
  if (packed.size() != 2) ADD_FAILURE() << packed.size() << " matrices";
  packed.resize(2);
  DescribedWeights again = conformance::random_weights(request.layer, 7);
  EXPECT_EQ(packed[0], bytes_of(must(convert(std::move(again.w13), layout, *device)), *device));
  EXPECT_EQ(packed[1], bytes_of(must(convert(std::move(again.w2), layout, *device)), *device));
  return true;
}

// The layout follows the row, not the platform: an Intel GPU beside the CPU changes nothing.
TEST(LayoutOfRow, HoldsOnCpuRowsBesideIntelGpu) {
  const RecordingTable table;
  const auto device = must(open_device("cpu", 1));
  for (const Scheme& scheme : {kInt4, kFp8}) {
    const Selection preferred =
        select(request_for(scheme, Platform::kOpenCl), with_intel_gpu(), table.rows());
    ASSERT_TRUE(preferred.plan);
    EXPECT_THAT(preferred.plan->layout, ::testing::AnyOf("rows16", "columns16"));
    EXPECT_TRUE(has_layout_of_row(request_for(scheme, Platform::kCpu), table, device));
    int named = 0;
    for (const Backend& row : backends()) {
      if (row.platform != Platform::kCpu) continue;
      named += has_layout_of_row(request_for(scheme, Platform::kCpu, row.name), table, device);
    }
    EXPECT_GE(named, 2) << "cpu and reference serve everything";
  }
}

// A row named by the user, and a scheme that the rows for Intel GPUs refuse.
TEST(LayoutOfRow, HoldsOnOtherOpenClRowsOfIntelGpu) {
  const auto opened = testing::open_test_device("opencl");
  if (!opened) GTEST_SKIP() << opened.error().to_string();
  const RecordingTable table;
  for (const char* row : {"opencl-simt", "opencl-reference"}) {
    for (const Scheme& scheme : {kInt4, kFp8})
      EXPECT_TRUE(has_layout_of_row(request_for(scheme, Platform::kOpenCl, row), table, *opened));
  }
  const Request refused = request_for({kF32Weight, {}}, Platform::kOpenCl);
  EXPECT_EQ(select(refused, with_intel_gpu(), table.rows()).plan->backend->name, "opencl-simt");
  EXPECT_TRUE(has_layout_of_row(refused, table, *opened));
}

// The kernels of the CPU rows read these weights: their outputs are within the bounds.
TEST(LayoutOfRow, GivesSameOutputBesideIntelGpu) {
  const Machine machine = with_intel_gpu();
  const auto device = must(open_device("cpu", 1));
  for (const Backend& row : backends()) {
    if (row.platform != Platform::kCpu) continue;
    for (const Scheme& scheme : {kInt4, kFp8}) {
      const conformance::Case one{row.name, scheme, {4, 64, 32, 2}, 3};
      const conformance::Outcome outcome = conformance::run(one, device, &machine);
      EXPECT_NE(outcome.kind, conformance::Outcome::kFailed) << outcome.message;
    }
  }
}

}  // namespace
}  // namespace moracle::layout_of_row_test
