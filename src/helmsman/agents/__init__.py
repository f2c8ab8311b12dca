"""Whatever runs turns: the contract, which engine a service gets, and one package for each agent."""
