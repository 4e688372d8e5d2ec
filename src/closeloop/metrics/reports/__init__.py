"""All numbers of a store on one page, to hand on. The same store gives the same bytes."""
