// Tests the state of a prompt as a file: another process goes on with it, and no damaged file does
// harm.
#include "models/state/sequence_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

#include "golden_model.h"
#include "support/device.h"
#include "support/sample.h"
#include "support/temporary_folder.h"

namespace moracle::sequence_file_test {
namespace {

namespace fs = std::filesystem;
using testing::golden_folder;
using ::testing::HasSubstr;
using testing::must;

std::string content_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}
void write(const std::string& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
}

class SequenceFile : public ::testing::TestWithParam<std::tuple<const char*, const char*>> {
 protected:
  void SetUp() override {
    const std::string kind = std::get<0>(GetParam());
    if (const auto device = testing::open_test_device(kind); !device)
      GTEST_SKIP() << device.error().to_string();
    options_.device = must(parse_device(kind == "opencl" ? testing::opencl_name() : kind));
    options_.threads = 2;
    options_.max_num_tokens = 16;
    options_.deterministic = true;
  }
  Model load() const { return must(Model::load(checkpoint_, options_)); }
  KeptSequence empty(Model& model) const { return {must(model.make_cache(100))}; }
  std::vector<int32_t> prompt(int64_t count) const {
    std::vector<int32_t> ids;
    for (int64_t t = 0; t < count; ++t) ids.push_back(static_cast<int32_t>((t * t + 3) % 40));
    return ids;
  }

  const Checkpoint checkpoint_ = must(Checkpoint::open(golden_folder(std::get<1>(GetParam()))));
  ModelOptions options_;
  const testing::TemporaryFolder folder_;
  const std::string path_ = folder_.path() + "/prompt";
};

TEST_P(SequenceFile, AnotherModelContinuesAsWithoutFile) {
  const std::vector<int32_t> ids = prompt(70);
  std::vector<int32_t> wanted;
  {
    Model model = load();
    wanted = must(generate(model, ids, {.max_tokens = 12})).ids;
    KeptSequence kept = empty(model);
    EXPECT_EQ(must(read_prompt(model, ids, kept, -1)), 0);
    EXPECT_EQ(kept.cache.length(), 69);
    must(save_sequence(model, {checkpoint_, options_}, kept, path_));
    EXPECT_EQ(must(generate(model, ids, {.max_tokens = 12, .kept = &kept})).ids, wanted);
  }
  Model model = load();
  KeptSequence kept = must(load_sequence(model, {checkpoint_, options_}, path_, 100));
  EXPECT_EQ(kept.cache.capacity(), 100);
  EXPECT_EQ(must(read_prompt(model, ids, kept, -1)), 69);
  const Generation done = must(generate(model, ids, {.max_tokens = 12, .kept = &kept}));
  EXPECT_EQ(done.ids, wanted);
  EXPECT_EQ(done.reused_tokens, 69);
  // Longer prompts take over the file's tokens.
  std::vector<int32_t> longer = ids;
  longer.insert(longer.end(), {7, 8, 9});
  wanted = must(generate(model, longer, {.max_tokens = 5})).ids;
  kept = must(load_sequence(model, {checkpoint_, options_}, path_, 1));
  EXPECT_EQ(kept.cache.capacity(), 69);
  kept = must(load_sequence(model, {checkpoint_, options_}, path_, 90));
  EXPECT_EQ(must(read_prompt(model, longer, kept, -1)), 69);
  EXPECT_EQ(must(generate(model, longer, {.max_tokens = 5, .kept = &kept})).ids, wanted);
}

TEST_P(SequenceFile, DamagedFilesAreRefused) {
  Model model = load();
  KeptSequence kept = empty(model);
  must(read_prompt(model, prompt(20), kept, -1));
  must(save_sequence(model, {checkpoint_, options_}, kept, path_));
  const std::string good = content_of(path_);
  std::mt19937 random(7);
  const std::string damaged = path_ + ".damaged";
  const int changes =
      std::string(std::get<0>(GetParam())) == "cpu" ? 400 / testing::Sample::kStep : 60;
  for (int i = 0; i < changes; ++i) {
    std::string bad = good;
    // Half of the changes are in the head, the model's identity and the ids.
    const size_t most = i % 2 == 0 ? 1500 : bad.size();
    const size_t at = random() % std::min(most, bad.size());
    if (i % 10 == 9)
      bad.resize(at);
    else if (i % 10 == 8)
      bad.insert(at, 1 + random() % 40, 'x');
    else
      for (size_t b = at; b < std::min(at + 1 + random() % 8, bad.size()); ++b)
        bad[b] = static_cast<char>(bad[b] ^ (1 + random() % 255));
    write(damaged, bad);
    const auto refused = load_sequence(model, {checkpoint_, options_}, damaged, 100);
    ASSERT_FALSE(refused) << "change " << i << " at byte " << at;
    EXPECT_EQ(refused.error().kind, ErrorKind::kBadFile) << refused.error().to_string();
  }
  // Sizes that no memory could hold.
  for (const size_t field : {8u, 16u, 24u}) {
    for (const int64_t value : {int64_t{-1}, int64_t{1} << 40, INT64_MAX, INT64_MIN, int64_t{0}}) {
      std::string bad = good;
      std::memcpy(bad.data() + field, &value, sizeof(value));
      if (bad == good) continue;
      write(damaged, bad);
      EXPECT_FALSE(load_sequence(model, {checkpoint_, options_}, damaged, 100)) << field;
    }
  }
  EXPECT_TRUE(load_sequence(model, {checkpoint_, options_}, path_, 100));
}

TEST_P(SequenceFile, RefusesOtherModelsOptionsAndAdapters) {
  Model model = load();
  KeptSequence kept = empty(model);
  must(read_prompt(model, prompt(20), kept, -1));
  must(save_sequence(model, {checkpoint_, options_}, kept, path_));
  const auto error = [&](const Checkpoint& checkpoint, const ModelOptions& options,
                         int32_t adapter) {
    const auto refused = load_sequence(model, {checkpoint, options, adapter}, path_, 100);
    return refused ? "" : refused.error().to_string();
  };
  EXPECT_EQ(error(checkpoint_, options_, -1), "");
  EXPECT_THAT(error(checkpoint_, options_, 0), HasSubstr("adapter: 0"));
  EXPECT_THAT(error(must(Checkpoint::open(golden_folder("mixtral"))), options_, -1),
              HasSubstr("a config.json"));
  ModelOptions quantized = options_;
  quantized.activations = ActivationPrecision::kInt8;
  EXPECT_THAT(error(checkpoint_, quantized, -1), HasSubstr("activations"));
  // The same sizes and names, and one other weight.
  testing::SyntheticCheckpoint changed = testing::golden_model(std::get<1>(GetParam()));
  changed.tensors.begin()->second.bytes[1] ^= std::byte{1};
  EXPECT_THAT(error(must(changed.open()), options_, -1), HasSubstr("samples of all weights"));
}

TEST_P(SequenceFile, KeepsOldFileUntilNewOneIsComplete) {
  Model model = load();
  KeptSequence kept = empty(model);
  must(read_prompt(model, prompt(20), kept, -1));
  const SequenceSource source{checkpoint_, options_};
  must(save_sequence(model, source, kept, path_));
  const std::string first = content_of(path_);
  must(read_prompt(model, prompt(25), kept, -1));
  must(save_sequence(model, source, kept, path_));
  EXPECT_NE(content_of(path_), first);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_.path()), {}), 1) << "a file is left over";
  EXPECT_FALSE(save_sequence(model, source, kept, folder_.path()));
  EXPECT_FALSE(save_sequence(model, source, kept, folder_.path() + "/none/prompt"));
  EXPECT_FALSE(save_sequence(model, source, empty(model), path_));
  fs::create_symlink(path_, folder_.path() + "/link");
  EXPECT_FALSE(save_sequence(model, source, kept, folder_.path() + "/link"));
  EXPECT_FALSE(load_sequence(model, source, folder_.path() + "/none", 100));
}

constexpr const char* kModels[] = {"qwen3_moe", "qwen3_next", "granite_moe_hybrid", "kimi_linear",
                                   "lfm2_moe",  "minimax",    "phimoe_long"};
std::string label(const ::testing::TestParamInfo<std::tuple<const char*, const char*>>& tested) {
  return std::string(std::get<0>(tested.param)) + "_" + std::get<1>(tested.param);
}
INSTANTIATE_TEST_SUITE_P(Devices, SequenceFile,
                         ::testing::Combine(::testing::Values("cpu", "opencl"),
                                            ::testing::ValuesIn(kModels)),
                         label);
INSTANTIATE_TEST_SUITE_P(Cuda, SequenceFile,
                         ::testing::Combine(::testing::Values("cuda"),
                                            ::testing::ValuesIn(kModels)),
                         label);
INSTANTIATE_TEST_SUITE_P(Compressed, SequenceFile,
                         ::testing::Combine(::testing::Values("cpu"),
                                            ::testing::Values("glm5_next_pools", "qwen4_exp")),
                         label);

}  // namespace
}  // namespace moracle::sequence_file_test
