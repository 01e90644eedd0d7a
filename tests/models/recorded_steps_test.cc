// Tests which steps are replayed, on a device that counts its recordings.
#include "models/decoder/recorded_steps.h"
#include "kernels/kernel_device.h"

#include <gtest/gtest.h>

namespace moracle::recorded_steps_test {
namespace {

/// A CPU device with graphs: a graph is the work enqueued while recording.
class RecordingDevice : public KernelDevice {
 public:
  std::string name() const override { return "recording"; }
  Platform platform() const override { return cpu_->platform(); }
  DType activation_dtype() const override { return cpu_->activation_dtype(); }
  Result<Buffer> allocate(size_t bytes) override { return cpu_->allocate(bytes); }
  bool host_visible() const override { return true; }
  Status upload(void* to, const void* from, size_t bytes, Stream stream) override {
    return cpu_->upload(to, from, bytes, stream);
  }
  Status download(void* to, const void* from, size_t bytes, Stream stream) override {
    return cpu_->download(to, from, bytes, stream);
  }
  Status read(void* to, const void* from, size_t bytes) override {
    return cpu_->read(to, from, bytes);
  }
  Status copy(void* to, const void* from, size_t bytes, Stream stream) override {
    return cpu_->copy(to, from, bytes, stream);
  }
  Status synchronize(Stream stream) override { return cpu_->synchronize(stream); }
  Result<std::unique_ptr<Graph>> record(const std::function<Status()>&, Stream) override {
    ++recorded;
    return std::unique_ptr<Graph>(new Nothing());
  }
  Ops& ops() override { return kernel_device(*cpu_).ops(); }
  ThreadPool& host_threads() override { return kernel_device(*cpu_).host_threads(); }

  int recorded = 0;

 private:
  struct Nothing : Graph {
    Status replay(Stream) override { return {}; }
  };
  std::shared_ptr<Device> cpu_ = *open_device("cpu", 1);
};

Batch batch_of(int64_t tokens, int64_t sequences, int64_t fewest, int64_t most) {
  Batch batch;
  batch.num_tokens = tokens, batch.num_sequences = sequences;
  batch.fewest_tokens = fewest, batch.most_tokens = most;
  batch.longest = 128;
  return batch;
}

struct Steps {
  RecordingDevice device;
  RecordedSteps steps;
  int enqueued = 0;

  void run(const Batch& batch) {
    EXPECT_TRUE(steps.run(batch, device, {}, [&]() -> Status { return ++enqueued, Status(); }));
  }
};

TEST(RecordedSteps, RecordOnSecondRunAndReplayAfterwards) {
  Steps s;
  for (int i = 0; i < 4; ++i) s.run(batch_of(3, 3, 1, 1));
  EXPECT_EQ(s.enqueued, 1);
  EXPECT_EQ(s.device.recorded, 1);
  EXPECT_EQ(s.steps.replays(), 3);
  s.steps.forget();
  s.run(batch_of(3, 3, 1, 1));
  EXPECT_EQ(s.enqueued, 2);
}

TEST(RecordedSteps, ExcludeLongPromptsAndSequencesWithoutTokens) {
  Steps s;
  for (int i = 0; i < 9; ++i) {
    s.run(batch_of(33, 2, 1, 32));
    // As many tokens as the single sequence had, but page tables of two sequences.
    s.run(batch_of(1, 2, 0, 1));
    s.run(batch_of(1, 1, 1, 1));
  }
  EXPECT_EQ(s.enqueued, 9 + 9 + 1);
  EXPECT_EQ(s.device.recorded, 1);
}

TEST(RecordedSteps, RecordStepsWithDraftsOnFifthRunOfTheirShape) {
  Steps s;
  for (int i = 0; i < 6; ++i) {
    s.run(batch_of(5, 2, 1, 4));
    s.run(batch_of(5, 2, 2, 3));
    s.run(batch_of(5, 3, 1, 3));
  }
  EXPECT_EQ(s.enqueued, 3 * 4);
  EXPECT_EQ(s.device.recorded, 3);
  EXPECT_EQ(s.steps.replays(), 3 * 2);
}

TEST(RecordedSteps, ManyShapesWithDraftsKeepGraphsOfSingleTokens) {
  Steps s;
  for (int i = 0; i < 2; ++i) s.run(batch_of(1, 1, 1, 1));
  for (int64_t tokens = 2; tokens <= 32; ++tokens)
    for (int64_t sequences = 1; sequences < std::min<int64_t>(tokens, 6); ++sequences)
      s.run(batch_of(tokens, sequences, 1, tokens - sequences + 1));
  const int enqueued = s.enqueued;
  s.run(batch_of(1, 1, 1, 1));
  EXPECT_EQ(s.enqueued, enqueued);
  EXPECT_EQ(s.steps.replays(), 2);
}

TEST(RecordedSteps, CanBeSwitchedOff) {
  Steps s;
  s.steps.on = false;
  for (int i = 0; i < 3; ++i) s.run(batch_of(1, 1, 1, 1));
  EXPECT_EQ(s.enqueued, 3);
  EXPECT_EQ(s.device.recorded, 0);
}

}  // namespace
}  // namespace moracle::recorded_steps_test
