#include "parallel/dispatch/dispatched_moe.h"

#include "base/text.h"
#include "base/try.h"

namespace moracle {

Result<DispatchedMoe> DispatchedMoe::make(FusedMoe moe, std::vector<ExpertMap> maps,
                                          std::shared_ptr<Group> group,
                                          std::shared_ptr<Exchange> exchange,
                                          std::shared_ptr<Device> device) {
  MORACLE_TRY(ExpertCopies copies, ExpertCopies::from(maps, /*one_each=*/false));
  const auto rank = static_cast<size_t>(group->rank());
  if (static_cast<int64_t>(maps.size()) != group->size() || !(maps[rank] == moe.plan().experts)) {
    return Error{ErrorKind::kInvalidArgument, "", moe.plan().layer.name,
                 str("a map for each of ", group->size(), " ranks, that of this rank as planned"),
                 str("there are ", maps.size())};
  }
  DispatchedMoe made(std::move(moe), std::move(group), std::move(exchange), std::move(device));
  made.copies_ = std::move(copies);
  MORACLE_CHECK(made.copies_.upload(made.group_->rank(), *made.device_));
  return made;
}

Status DispatchedMoe::apply(const Matrix& hidden, TopkIds topk_ids, TopkWeights topk_weights,
                            const Matrix& output, Stream stream) {
  return all_to_all_->run(moe_, copies_, hidden, topk_ids, topk_weights, output, stream);
}

Status DispatchedMoe::apply_gathered(const Matrix& hidden, TopkIds topk_ids,
                                     TopkWeights topk_weights, const Matrix& output,
                                     Stream stream) {
  return gathered_->run(moe_, copies_, hidden, topk_ids, topk_weights, output, stream);
}

}  // namespace moracle
