#include "parallel/dispatched_moe.h"

#include "base/text.h"
#include "base/try.h"

namespace moracle {

Result<DispatchedMoe> DispatchedMoe::make(FusedMoe moe, std::vector<ExpertMap> maps,
                                          std::shared_ptr<Group> group,
                                          std::shared_ptr<Exchange> exchange,
                                          std::shared_ptr<Device> device) {
  MORACLE_CHECK(check_cover(maps));
  const auto rank = static_cast<size_t>(group->rank());
  if (static_cast<int64_t>(maps.size()) != group->size() || !(maps[rank] == moe.plan().experts)) {
    return Error{ErrorKind::kInvalidArgument, "", moe.plan().layer.name,
                 str("a map for each of ", group->size(), " ranks, that of this rank as planned"),
                 str("there are ", maps.size())};
  }
  DispatchedMoe made(std::move(moe), std::move(group), std::move(exchange), std::move(device));
  made.holders_.resize(maps[0].num_experts());
  for (size_t r = 0; r < maps.size(); ++r)
    for (const int32_t e : maps[r].global()) made.holders_[e] = static_cast<int32_t>(r);
  return made;
}

Status DispatchedMoe::apply(const Matrix& hidden, TopkIds topk_ids, TopkWeights topk_weights,
                            const Matrix& output, Stream stream) {
  return dispatch_->apply(moe_, holders_, hidden, topk_ids, topk_weights, output, stream);
}

Status DispatchedMoe::apply_gathered(const Matrix& hidden, TopkIds topk_ids,
                                     TopkWeights topk_weights, const Matrix& output,
                                     Stream stream) {
  return dispatch_->apply_gathered(moe_, hidden, topk_ids, topk_weights, output, stream);
}

}  // namespace moracle
