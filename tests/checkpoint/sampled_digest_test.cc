#include "checkpoint/tensors/sampled_digest.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>

#include "base/threads/thread_pool.h"
#include "checkpoint/safetensors/safetensors.h"
#include "checkpoint/safetensors/safetensors_folder.h"
#include "paths.h"

namespace moracle::sampled_digest_test {
namespace {

namespace fs = std::filesystem;

const std::string kModel = testing::models_dir() + "/qwen3moe-gptq-int4-g128";

class SampledDigest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = ::testing::TempDir() + "/sampled_digest_" +
              ::testing::UnitTest::GetInstance()->current_test_info()->name();
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    fs::copy_file(kModel + "/model.safetensors", file());
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string file() const { return folder_ + "/model.safetensors"; }
  static std::string digest(const std::string& folder, int threads = 2) {
    ThreadPool pool(threads);
    const Result<Tensors> tensors = open_safetensors(folder);
    const Result<std::string> text = sampled_digest(*tensors, pool);
    EXPECT_TRUE(text) << (text ? "" : text.error().to_string());
    return text ? *text : "";
  }
  // Changes bytes of a tensor, from its byte `first` on.
  void change(const std::string& tensor, uint64_t first, uint64_t count) {
    const Result<TensorFile> opened = SafetensorsFile::open(file());
    const StoredTensor& stored = opened->tensors().at(tensor);
    ASSERT_LE(first + count, stored.view.num_bytes());
    std::fstream stream(file(), std::ios::in | std::ios::out | std::ios::binary);
    for (uint64_t i = 0; i < count; ++i) {
      const auto at = static_cast<std::streamoff>(stored.first + first + i);
      stream.seekg(at);
      const auto byte = static_cast<char>(stream.get() ^ 1);
      stream.seekp(at);
      stream.put(byte);
    }
  }

  std::string folder_;
};

TEST_F(SampledDigest, EqualForCopyAndAnyThreadCount) {
  EXPECT_EQ(digest(folder_), digest(kModel));
  EXPECT_EQ(digest(folder_, 1), digest(folder_, 3));
}

TEST_F(SampledDigest, ChangesWithAnyTensorThatDiffersThroughout) {
  const std::string before = digest(folder_);
  const Result<Tensors> tensors = open_safetensors(kModel);
  int64_t looked_at = 0;
  for (const auto& [name, entry] : tensors->all()) {
    if (++looked_at % 40 != 0) continue;  // 16 of 641
    change(name, 0, entry.view.num_bytes());
    EXPECT_NE(digest(folder_), before) << name;
    change(name, 0, entry.view.num_bytes());
  }
  EXPECT_EQ(digest(folder_), before);
}

TEST_F(SampledDigest, ChangesWithOneBitOfSmallTensor) {
  const std::string before = digest(folder_);
  change("model.norm.weight", 300, 1);
  EXPECT_NE(digest(folder_), before);
}

// The digest covers 4 KiB of a table of 2 MiB (docs/scaling.md).
TEST_F(SampledDigest, IgnoresBitOutsideSample) {
  const std::string before = digest(folder_);
  change("model.embed_tokens.weight", 0, 1);
  EXPECT_EQ(digest(folder_), before);
}

TEST_F(SampledDigest, ErrorNamesTruncatedFile) {
  ThreadPool pool(2);
  const Result<Tensors> tensors = open_safetensors(folder_);
  fs::resize_file(file(), fs::file_size(file()) / 2);
  const Result<std::string> text = sampled_digest(*tensors, pool);
  ASSERT_FALSE(text);
  EXPECT_THAT(text.error().to_string(), ::testing::HasSubstr(file()));
}

}  // namespace
}  // namespace moracle::sampled_digest_test
