#include "serve/api/event_queue.h"

#include "serve/answers/answer.h"

namespace moracle::serve {

void EventQueue::add(std::shared_ptr<Answer> answer, std::shared_ptr<Exchange> exchange,
                     size_t index, Event&& event) {
  const std::lock_guard lock(mutex_);
  items_.push_back({std::move(answer), std::move(exchange), index, std::move(event)});
}

// Post under the lock, so that concurrent flushes keep the order.
void EventQueue::flush() {
  const std::lock_guard lock(mutex_);
  if (items_.empty()) return;
  const auto items = std::make_shared<std::vector<Item>>(std::move(items_));
  items_ = {};
  items_.reserve(items->size());  // the next step has about as many
  const std::shared_ptr<Exchange> exchange = items->front().exchange;
  exchange->post([items] {
    for (Item& item : *items) item.answer->take(item.index, std::move(item.event));
  });
}

}  // namespace moracle::serve
