//! Every setting of Creel, declared once.
