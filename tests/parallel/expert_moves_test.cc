// Experts that move between ranks of threads while the model runs.
#include "models/expert_moves.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <mutex>

#include "models/decoder/model_state.h"
#include "same_bits.h"
#include "support/model_words.h"
#include "support/must.h"
#include "support/sample.h"

namespace moracle::expert_moves_test {
namespace {

using testing::golden_folder;
using testing::golden_reference;
using ::testing::HasSubstr;
using testing::must;
using testing::on_ranks;
using testing::options_on;

using Maps = std::vector<ExpertMap>;

// Each rank gets the experts of the next one; the first expert is on every rank if `copies`.
Maps next_maps(const Maps& now, bool copies) {
  Maps maps;
  for (size_t r = 0; r < now.size(); ++r) {
    std::vector<int32_t> local = now[(r + 1) % now.size()].local();
    if (copies && local[0] < 0)
      local[0] = static_cast<int32_t>(now[(r + 1) % now.size()].num_local());
    maps.push_back(must(ExpertMap::from(std::move(local))));
  }
  return maps;
}

// The logits of a sequence, token by token; `between` runs before the token at the middle.
template <class Between>
std::vector<float> logits_of(Model& model, const std::vector<int32_t>& ids,
                             const Between& between) {
  KvCache cache = must(model.make_cache(static_cast<int64_t>(ids.size())));
  std::vector<float> all;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (i == ids.size() / 2) between();
    const Model::Step step{std::span(ids).subspan(i, 1), &cache};
    must(model.forward({&step, 1}));
    const auto logits = must(model.logits(0, 1));
    all.insert(all.end(), logits.begin(), logits.end());
  }
  return all;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

std::string error_of(const Status& status) {
  return status ? "" : status.error().to_string();
}

class MovedExperts : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(All, MovedExperts,
                         ::testing::ValuesIn(testing::sample_of(testing::golden_models(),
                                                                "MovedExperts")),
                         [](const auto& one) { return one.param; });

// Every expert of a sequence's layers moves in the middle of it. Dispatched ranks have the same
// sequence each.
void expect_bits_of_one_process(const std::string& name, int64_t size, bool copies, Spread spread,
                                const std::string& quantization = "") {
  SCOPED_TRACE(::testing::Message() << size << " ranks, copies " << copies);
  const std::string folder = golden_folder(name);
  const std::vector<int32_t> ids = golden_reference(name).ids;
  ModelOptions one = options_on(nullptr, true, Placement::kLinear);
  one.quantization = testing::quantization(quantization);
  Model alone = must(Model::load(must(Checkpoint::open(folder)), one));
  const std::vector<float> want = logits_of(alone, ids, [] {});
  std::mutex mutex;
  on_ranks(size, [&](const std::shared_ptr<Group>& group) {
    ModelOptions options = options_on(group, true, Placement::kRoundRobin);
    options.spread = spread;
    options.quantization = testing::quantization(quantization);
    Model model = must(Model::load(must(Checkpoint::open(folder)), options));
    std::map<int64_t, Maps> moved;
    const std::vector<float> got = logits_of(model, ids, [&] {
      ExpertMoves moves = must(ExpertMoves::open(model, folder));
      for (const auto& [layer, now] : must(placement(model))) {
        moved[layer] = next_maps(now, copies);
        must(moves.move(layer, moved[layer]));
      }
    });
    const std::vector<float> after = logits_of(model, ids, [] {});
    const bool same_maps = must(placement(model)) == moved;
    const std::lock_guard lock(mutex);
    EXPECT_TRUE(same_bits(got, want));
    EXPECT_TRUE(same_bits(after, want));
    EXPECT_TRUE(copies || same_maps);
    EXPECT_FALSE(moved.empty());
    // The experts that a rank holds are those that it would load.
    for (const auto& [layer, maps] : moved) {
      const FusedMoe& experts =
          ModelAccess::state(model).layers[layer].feed_forward.routed.experts();
      EXPECT_EQ(experts.plan().experts.num_local(), maps[group->rank()].num_local());
    }
  });
}

TEST_P(MovedExperts, SequencesKeepTheBitsOfOneProcess) {
  if (!testing::has_experts(GetParam())) GTEST_SKIP() << "a model without experts";
  for (const bool copies : {false, true}) {
    expect_bits_of_one_process(GetParam(), 2, copies, Spread::kReplicated);
    expect_bits_of_one_process(GetParam(), 3, copies, Spread::kReplicated);
    expect_bits_of_one_process(GetParam(), 3, copies, Spread::kDispatched);
  }
}

// Experts are quantized when they are read, by the first rank or by the next one.
TEST(ExpertMoves, WeightsQuantizedWhileLoadingKeepTheirBits) {
  for (const char* scheme : {"int8-per-channel", "fp8-per-block"})
    expect_bits_of_one_process("qwen3_moe", 3, true, Spread::kReplicated, scheme);
}

// Copies of a model's folder, one for each rank.
class Folders {
 public:
  Folders() {
    for (int r = 0; r < 2; ++r)
      std::filesystem::copy(golden_folder("qwen3_moe"), of(r),
                            std::filesystem::copy_options::recursive |
                                std::filesystem::copy_options::overwrite_existing);
  }
  ~Folders() {
    for (int r = 0; r < 2; ++r) std::filesystem::remove_all(of(r));
  }
  static std::string of(int64_t rank) {
    return std::filesystem::temp_directory_path() /
           ("moved_experts_" + std::to_string(::getpid()) + "_" + std::to_string(rank));
  }
  static std::string weights_of(int64_t rank) {
    for (const auto& entry : std::filesystem::directory_iterator(of(rank)))
      if (entry.path().extension() == ".safetensors") return entry.path();
    return "";
  }
};

// `spoil` changes rank 1's files after loading; `spoil_opened` after the files were opened again.
void expect_old_experts_stay(const std::function<void()>& spoil,
                             const std::function<void()>& spoil_opened, const std::string& error) {
  const Folders folders;
  const std::vector<int32_t> ids = golden_reference("qwen3_moe").ids;
  std::mutex mutex;
  on_ranks(2, [&](const std::shared_ptr<Group>& group) {
    const std::string folder = Folders::of(group->rank());
    Model model = must(
        Model::load(must(Checkpoint::open(folder)), options_on(group, true, Placement::kLinear)));
    const auto before = must(placement(model));
    const std::vector<float> want = logits_of(model, ids, [] {});
    std::string got;
    const std::vector<float> while_moving = logits_of(model, ids, [&] {
      must(group->barrier());
      if (group->rank() == 1) spoil();
      must(group->barrier());
      Result<ExpertMoves> moves = ExpertMoves::open(model, folder);
      got = moves ? "" : moves.error().to_string();
      if (!moves) return;
      must(group->barrier());
      if (group->rank() == 1) spoil_opened();
      must(group->barrier());
      const auto& [layer, maps] = *before.begin();
      got = error_of(moves->move(layer, next_maps(maps, false)));
    });
    const bool same_maps = must(placement(model)) == before;
    const std::lock_guard lock(mutex);
    EXPECT_THAT(got, HasSubstr(error));
    EXPECT_TRUE(same_bits(while_moving, want));
    EXPECT_TRUE(same_maps);
  });
}

TEST(ExpertMoves, RankWithoutItsFileIsNamedAndOldExpertsStay) {
  expect_old_experts_stay([] { std::filesystem::remove(Folders::weights_of(1)); }, [] {},
                          "rank 1: needs its checkpoint to move experts");
}

TEST(ExpertMoves, RankWithOtherWeightsIsNamedAndOldExpertsStay) {
  expect_old_experts_stay(
      [] {
        std::fstream file(Folders::weights_of(1), std::ios::in | std::ios::out | std::ios::binary);
        file.seekp(-1, std::ios::end);
        file.put('\x55');
      },
      [] {}, "needs the weights that the model has; they have changed");
}

TEST(ExpertMoves, RankThatCannotReadIsNamedAndOldExpertsStay) {
  expect_old_experts_stay([] {}, [] { std::filesystem::resize_file(Folders::weights_of(1), 4096); },
                          "rank 1: needs its experts of layer");
}

TEST(ExpertMoves, MapsThatDoNotFitAreRefusedOnEveryRank) {
  std::mutex mutex;
  on_ranks(2, [&](const std::shared_ptr<Group>& group) {
    const std::string folder = golden_folder("qwen3_moe");
    Model model = must(
        Model::load(must(Checkpoint::open(folder)), options_on(group, true, Placement::kLinear)));
    ExpertMoves moves = must(ExpertMoves::open(model, folder));
    const auto [layer, now] = *must(placement(model)).begin();
    const auto refused = [&](int64_t of_layer, const Maps& maps) {
      return error_of(moves.move(of_layer, maps));
    };
    const std::string no_layer = refused(99, now), one_map = refused(layer, {now[0]}),
                      not_all = refused(layer, {now[0], now[0]});
    const std::string good = refused(layer, now), again = refused(layer, now);
    const std::lock_guard lock(mutex);
    EXPECT_THAT(no_layer, HasSubstr("layer 99: needs experts that ranks share"));
    EXPECT_THAT(one_map, HasSubstr("a map for each of 2 ranks"));
    EXPECT_THAT(not_all, HasSubstr("expert"));
    EXPECT_EQ(good, "");
    EXPECT_THAT(again, HasSubstr("they have moved"));
  });
}

TEST(ExpertMoves, OneProcessIsRefused) {
  const std::string folder = golden_folder("qwen3_moe");
  Model model = must(
      Model::load(must(Checkpoint::open(folder)), options_on(nullptr, true, Placement::kLinear)));
  EXPECT_THAT(ExpertMoves::open(model, folder).error().to_string(),
              HasSubstr("this process is alone"));
}

}  // namespace
}  // namespace moracle::expert_moves_test
