// Tests one MoE layer of every available checkpoint, from stored input to stored output. It uses
// only public headers, like an engine author. The golden cuts are in the repository. The full
// checkpoints are optional, next to the clone. With MORACLE_MEASURES_DEVICE=cuda in the environment
// it runs on a GPU, whose activations are bf16.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <set>

#include "checkpoint/golden_cuts.h"
#include "checkpoint/safetensors/safetensors.h"  // only to read the reference file
#include "checkpoint/safetensors_image.h"
#include "moracle/moracle.h"
#include "oracle/backend.h"
#include "paths.h"
#include "support/device.h"
#include "support/must.h"

namespace moracle::stored_layers_test {
namespace {

namespace fs = std::filesystem;

std::string device_name() {
  const char* const asked = std::getenv("MORACLE_MEASURES_DEVICE");
  return asked != nullptr ? asked : "cpu";
}

struct Stored {
  std::string folder;
  std::string backend;
};
void PrintTo(const Stored& s, std::ostream* out) {
  *out << s.folder << " on " << s.backend;
}

std::vector<std::string> folders() {
  std::vector<std::string> found = testing::golden_cuts();
  for (const std::string& root : {testing::models_dir(), testing::checkpoints_dir()}) {
    for (const std::string& folder : testing::folders_in(root)) {
      if (fs::exists(folder + "/reference.safetensors")) found.push_back(folder);
    }
  }
  return found;
}

std::vector<Stored> all() {
  std::vector<Stored> cases;
  const auto device = parse_device(device_name());
  if (!device) return cases;
  // Every test process builds this list, so it opens no checkpoint.
  const Machine here = Machine::here();
  for (const std::string& folder : folders()) {
    for (const Backend& backend : backends()) {
      if (backend.built() && !backend.linear_only && testing::has_needs_of(backend, *device, here))
        cases.push_back({folder, std::string(backend.name)});
    }
  }
  return cases;
}

class StoredLayers : public ::testing::TestWithParam<Stored> {
 protected:
  Buffer on_device(const TensorView& from) {
    Buffer buffer = testing::must(device_->allocate(from.num_bytes()));
    testing::must(device_->upload(buffer.data(), from.data, from.num_bytes()));
    return buffer;
  }
  std::shared_ptr<Device> device_;
};

TEST_P(StoredLayers, MatchStoredOutput) {
  const auto& [folder, backend] = GetParam();
  auto checkpoint = Checkpoint::open(folder);
  ASSERT_TRUE(checkpoint) << checkpoint.error().to_string();
  auto layer = checkpoint->moe_layer(1);
  ASSERT_TRUE(layer) << layer.error().to_string();
  const Selection selection =
      select({.layer = layer->spec, .max_num_tokens = 16, .backend = backend}, Machine::here());
  ASSERT_TRUE(selection.plan) << explain(selection);
  auto device = testing::open_test_device(device_name(), 2);
  ASSERT_TRUE(device) << device.error().to_string();
  device_ = *device;
  const bool quantizes = layer->spec.scheme.activation.has_value();
  const int64_t hidden_size = layer->spec.hidden_size, top_k = layer->spec.top_k;
  auto moe = FusedMoe::make(*std::move(layer), selection, device_);
  ASSERT_TRUE(moe) << moe.error().to_string();

  auto reference = testing::SafetensorsImage::open(folder + "/reference.safetensors");
  ASSERT_TRUE(reference) << reference.error().to_string();
  const auto& tensors = reference->tensors();
  const TensorView& input = tensors.at("moe.input");
  ASSERT_EQ(input.shape[1], hidden_size);
  ASSERT_EQ(tensors.at("moe.topk_ids").shape[1], top_k);
  const TensorView& want = tensors.at(quantizes ? "act.moe.output_routed" : "moe.output_routed");
  const Buffer hidden = on_device(input), ids = on_device(tensors.at("moe.topk_ids")),
               weights = on_device(tensors.at("moe.topk_weights")), result = on_device(input);
  const Status done = moe->apply(Matrix::f32(hidden.as<float>(), input.shape[0], hidden_size),
                                 {ids.as<int32_t>()}, {weights.as<float>()},
                                 Matrix::f32(result.as<float>(), input.shape[0], hidden_size));
  ASSERT_TRUE(done) << done.error().to_string();
  std::vector<float> output(input.num_elements());
  ASSERT_TRUE(device_->download(output.data(), result.data(), result.bytes()));
  const Status finished = device_->synchronize();
  ASSERT_TRUE(finished) << finished.error().to_string();
  double difference = 0, size = 0;
  for (size_t i = 0; i < output.size(); ++i) {
    difference += std::pow(output[i] - want.as<float>()[i], 2);
    size += std::pow(want.as<float>()[i], 2);
  }
  // A GPU rounds activations to bf16 and then quantizes them. Some codes fall on the other side of
  // a tie, and one e4m3 step is 6 to 12 % of the value.
  const bool rounds = device_->activation_dtype() != DType::kF32;
  EXPECT_LT(std::sqrt(difference / size), !rounds ? 2e-3 : quantizes ? 5e-2 : 5e-3);
  RecordProperty("relative_distance", std::to_string(std::sqrt(difference / size)));
}

std::string test_name(const ::testing::TestParamInfo<Stored>& info) {
  const fs::path folder = info.param.folder;
  return testing::test_name(folder.parent_path().filename().string() + "_" +
                            folder.filename().string() + "_on_" + info.param.backend);
}

TEST(GoldenCuts, RunOnEveryBackendHere) {
  if (device_name() != "cpu") GTEST_SKIP() << "the rows of the CPU run only on device cpu";
  std::set<std::pair<std::string, std::string>> run;
  for (const Stored& stored : all()) run.emplace(stored.folder, stored.backend);
  for (const testing::Cut& cut : testing::kCuts) {
    const std::string folder = testing::golden_dir() + "/layers/" + std::string(cut.folder);
    for (const char* backend : {"cpu", "reference"}) {
      EXPECT_TRUE(run.contains({folder, backend})) << folder << " on " << backend;
    }
  }
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(StoredLayers);
INSTANTIATE_TEST_SUITE_P(Layers, StoredLayers, ::testing::ValuesIn(all()), test_name);

}  // namespace
}  // namespace moracle::stored_layers_test
