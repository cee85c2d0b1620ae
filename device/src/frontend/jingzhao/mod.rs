//! JingZhao (HanGu) HCA front-end.
