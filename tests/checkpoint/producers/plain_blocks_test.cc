// Tests weights in block types of GGUF: whole, by rows, as tables and as experts of one tensor.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>

#include "base/threads/thread_pool.h"
#include "checkpoint/expect_error.h"
#include "checkpoint/producers/producer.h"
#include "quant/blocks/gguf_blocks.h"
#include "support/golden_blocks.h"
#include "support/must.h"
#include "support/temporary_folder.h"

namespace moracle::testing::plain_blocks_test {
namespace {

constexpr DType kTypes[] = {DType::kQ4_0,  DType::kQ8_0,       DType::kQ4_1,      DType::kQ2K,
                            DType::kQ4K,   DType::kQ6K,        DType::kIQ3XXS,    DType::kIQ1M,
                            DType::kIQ4NL, DType::kMxfp4Block, DType::kNvfp4Block};
constexpr int64_t kRows = 60, kPerRow = 2;

// The tensors "one.weight" [rows, two blocks] and "all" [3, rows / 3, two blocks] of the golden
// blocks, and a bias.
class BlockFile {
 public:
  explicit BlockFile(DType type) : golden_(type), k_(kPerRow * block(type).elements) {
    for (int64_t b = 0; b < kRows * kPerRow; ++b) {
      const std::byte* const from = golden_.blocks.data() + b % golden_.count * block(type).bytes;
      bytes_.insert(bytes_.end(), from, from + block(type).bytes);
    }
    std::vector<float> bias(kRows);
    for (size_t i = 0; i < bias.size(); ++i) bias[i] = static_cast<float>(i) + 0.5f;
    const std::string path = folder_.path() + "/blocks";
    std::ofstream file(path, std::ios::binary);
    file.write(reinterpret_cast<const char*>(bytes_.data()),
               static_cast<std::streamsize>(bytes_.size()));
    file.write(reinterpret_cast<const char*>(bias.data()), kRows * sizeof(float));
    file.close();
    std::map<std::string, StoredTensor> stored;
    stored["one.weight"] = {{nullptr, type, {kRows, k_}}, 0};
    stored["one.bias"] = {{nullptr, DType::kF32, {kRows}}, bytes_.size()};
    stored["all"] = {{nullptr, type, {3, kRows / 3, k_}}, 0};
    std::vector<TensorFile> files;
    files.emplace_back(must(File::open(path)), std::move(stored));
    tensors_ = must(Tensors::from(std::move(files)));
  }

  const Tensors& tensors() const { return tensors_; }
  int64_t k() const { return k_; }
  int64_t num_bytes() const { return static_cast<int64_t>(bytes_.size()); }
  /// Rows [first, first + count) in the form that expand_blocks gives.
  CanonicalMatrix rows(int64_t first, int64_t count) const {
    ThreadPool caller(1);
    return expand_blocks(golden_.type, row(first), count, k_, caller);
  }
  const std::byte* row(int64_t r) const { return bytes_.data() + r * row_bytes(golden_.type, k_); }

 private:
  GoldenBlocks golden_;
  int64_t k_;
  std::vector<std::byte> bytes_;
  TemporaryFolder folder_;
  Tensors tensors_;
};

void expect_same(const CanonicalMatrix& matrix, const CanonicalMatrix& want) {
  EXPECT_EQ(matrix.n, want.n);
  EXPECT_EQ(matrix.k, want.k);
  EXPECT_EQ(matrix.key, want.key);
  EXPECT_TRUE(
      std::equal(matrix.codes.begin(), matrix.codes.end(), want.codes.begin(), want.codes.end()));
  EXPECT_EQ(matrix.scales, want.scales);
  EXPECT_EQ(matrix.zero_points, want.zero_points);
  EXPECT_EQ(matrix.minimums, want.minimums);
  EXPECT_EQ(matrix.scale_factors, want.scale_factors);
  EXPECT_EQ(matrix.minimum_factors, want.minimum_factors);
}

TEST(PlainBlocks, AreDescribedInIntegerForm) {
  for (DType type : kTypes) {
    SCOPED_TRACE(name(type));
    const BlockFile file(type);
    const DescribedLinear linear = must(describe_plain(file.tensors(), "one"));
    EXPECT_EQ(linear.scheme, Scheme{integer_form(type)});
    EXPECT_EQ(linear.shape, (MatrixShape{kRows, file.k(), integer_form(type), false, true}));
    EXPECT_EQ(linear.source.tensors, (std::vector<std::string>{"one.weight", "one.bias"}));
    EXPECT_EQ(linear.source.source_bytes, file.num_bytes() + kRows * 4);
  }
}

TEST(PlainBlocks, AreReadWholeAndByRows) {
  ThreadPool pool(2);
  for (DType type : kTypes) {
    SCOPED_TRACE(name(type));
    const BlockFile file(type);
    const DescribedLinear linear = must(describe_plain(file.tensors(), "one"));
    const CanonicalMatrix whole = must(linear.source.read(pool));
    expect_same(whole, file.rows(0, kRows));
    EXPECT_EQ(whole.bias.size(), static_cast<size_t>(kRows));
    const CanonicalMatrix some = must(linear.source.read_rows(pool, 17, 9));
    expect_same(some, file.rows(17, 9));
    EXPECT_EQ(some.bias.front(), 17.5f);
  }
}

TEST(PlainBlocks, StayAsStoredInTables) {
  ThreadPool pool(2);
  for (DType type : kTypes) {
    SCOPED_TRACE(name(type));
    const BlockFile file(type);
    const DescribedLinear table = must(describe_plain_table(file.tensors(), "one"));
    EXPECT_EQ(table.scheme, Scheme{QuantKey{type}});
    const CanonicalMatrix some = must(table.source.read_rows(pool, 3, 41));
    EXPECT_EQ(some.key, QuantKey{type});
    ASSERT_EQ(some.codes.size(), static_cast<size_t>(41 * row_bytes(type, file.k())));
    EXPECT_EQ(std::memcmp(some.codes.data(), file.row(3), some.codes.size()), 0);
  }
}

TEST(PlainBlocks, OfExpertsInOneTensorAreReadByExpert) {
  ThreadPool pool(2);
  for (DType type : kTypes) {
    SCOPED_TRACE(name(type));
    const BlockFile file(type);
    const DescribedLinear linear = must(describe_plain_expert(file.tensors(), "all", 2, 3, false));
    EXPECT_EQ(linear.scheme, Scheme{integer_form(type)});
    EXPECT_EQ(linear.source.source_bytes, file.num_bytes() / 3);
    expect_same(must(linear.source.read(pool)), file.rows(40, 20));
    expect_same(must(linear.source.read_rows(pool, 5, 2)), file.rows(45, 2));
  }
}

TEST(PlainBlocks, AreRefusedWhereTheFamilyTransposesExperts) {
  const BlockFile file(DType::kQ4K);
  expect_bad(describe_plain_expert(file.tensors(), "all", 0, 3, true),
             {"tensor 'all'",
              "needs rows of inputs, because blocks cannot be transposed; it is "
              "q4_k [3, 20, 512]"});
}

}  // namespace
}  // namespace moracle::testing::plain_blocks_test
