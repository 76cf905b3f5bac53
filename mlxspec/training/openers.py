"""First words of requests, so that what a model invents is varied: kinds of task, and things to speak about. Knows no model.

A model that is given nothing but the start of a user's turn asks for much the same few things. It goes on from one of these openers instead.
"""

import random


def listed(text: str) -> list[str]:
    """The parts between the bars."""
    return text.split("|")


TOPICS = listed(
    "a lighthouse keeper|an old bakery|the first snow|a lost dog|learning to cook|a broken clock|space travel|the history of bread|how bridges stand|"
    "ocean currents|a small village|public libraries|bees|electric cars|a family reunion|volcanoes|chess|city gardens|the human heart|solar panels|"
    "a train journey|coral reefs|time management|home repair|job interviews|ancient Rome|vaccines|a shy robot|painting|mountain weather|tea|"
    "computer networks|a school play|rainforests|healthy sleep|saving money|a jazz band|whales|maps|recycling|the printing press|a desert island|"
    "a new neighbour|running a marathon|black holes|the water cycle|a market in Spain|photography|a birthday party|earthquakes|glass making|"
    "online safety|a detective|growing tomatoes|the moon landing|statistics|friendship|a violin|world trade|a rainy Sunday|dinosaurs|antibiotics|"
    "a coffee shop|wind turbines|a bicycle trip|poetry|the stock market|a hidden door|river dams|cats|learning languages|the Renaissance|gravity|"
    "a hospital|music theory|soil|a small company|databases|insects|a football team|fashion|migration of birds|a farm in winter|privacy|"
    "mathematics in nature|a haunted house|cloud computing|the Silk Road|plastic waste|a wedding|nutrition|tides|ethics in science|an orchestra|"
    "a spaceship's cook|the alphabet|heat pumps|a remote school|basketball|the immune system|a letter from the past|taxes|sharks|folk tales|"
    "teamwork|a zoo|crystals|urban traffic|a garden party|memory|the Great Wall|machine learning|a night market|camping|cheese|the Arctic|"
    "a power cut|remote work|stars|an apprentice|measurement|fire safety|a museum|rice|the theatre|vitamins|a sailing boat|sorting algorithms|"
    "a strange noise|local elections|waterfalls|shoes|a secret recipe|the brain|customer service|a stone bridge|genetics|a summer camp|inflation|"
    "steam engines|hiking|honesty|an airport|the printing of money|autumn|small talk|sound waves|a clever fox|tourism|batteries|a long winter"
)

OPENERS = listed(
    # writing
    "Write a short story about {}|Write a poem about {}|Write a letter to a friend about {}|Write an email to my manager about|Draft a speech on {}|"
    "Write a blog post about {}|Write a product description for|Write a news report about {}|Compose a song about {}|"
    "Write a dialogue between|"
    "Write the opening paragraph of a novel about {}|Describe {} in vivid detail|Write a funny story in which|Write an essay on {}|"
    "Write a review of|"
    "Write a persuasive paragraph about {}|Create a slogan for|Write a diary entry about {}|Write a scene where|"
    "Give me five titles for a book about {}|"
    "Continue this story:|Rewrite this sentence in a formal tone:|Make this text shorter:|Correct the grammar of this sentence:|Paraphrase:|"
    "Write a thank you note|Write a limerick about {}|Write an invitation to|Write a cover letter for|Write a description of a character who|"
    # explanation
    "Explain {} to a child|Explain {} in simple terms|How does {} work|What is the difference between|Why is {} important|What causes|"
    "What are the main parts of|Give me an overview of {}|Tell me about {}|What are the benefits of {}|What are the risks of|Define|"
    "Give an example of|Compare {} and {}|Describe the process of|What should I know about {}|How is {} related to {}|What happens when|"
    "List three facts about {}|Explain the history of {}|Why do people|What is the purpose of|How did {} change the world|Explain step by step how|"
    # advice and plans
    "How can I|How do I start with {}|What is the best way to|Give me tips for|I need help with|I want to learn about {}. Where|Plan a day|"
    "Make a shopping list for|Suggest a plan for|Give me ideas for|What should I do if|Create a weekly schedule for|I am planning|"
    "My friend and I|Recommend|Can you help me|Could you please|I have a problem with|What would you do if|Make a checklist for|"
    # numbers
    "A baker makes|A train leaves|Anna has|There are|If a shop sells|A farmer has|Tom buys|A class of|Maria earns|A box holds|"
    "The sum of two numbers|What is the area of|A car travels|Calculate|Solve for x:|How many|A recipe needs|Sam read|Each ticket costs|"
    "A tank is filled|In a garden there are|The price of a|Lisa saves|A runner|Two friends share|What percentage of|John is|A rectangle has|"
    "At a party,|A factory makes|Peter walks|A library has|Emma had|During a sale,|A bus carries|The average of|A bottle holds|Jack works|"
    # questions
    "Who was|Who wrote|Who invented|When did|When was the first|Where is|Where does|What is the capital of|What year did|Which country|Which animal|"
    "Who is the author of|How long does|How far is|How many people|What does the word|Is it true that|What is the name of|Who played|Who sang|"
    "What was the result of|When does|What is the largest|What kind of|Where did the|Who won|What is the meaning of|Which planet|How old is|"
    # translation and language
    "Translate this sentence from German into English:|Translate into German:|Please translate from French:|Translate to Spanish:|"
    "What does this German sentence mean in English? Der|Give the English for: Die|Translate from German: In|English translation of: Das|"
    "Turn this German news sentence into English: Nach|Put this into English: Wir|Translate from German: Ein|What is the English for: Auf|"
    "List synonyms of|Use this word in a sentence:|"
    # code and data
    "Write a Python function that|Write a program that|What does this code do?|Fix the bug in this code:|Write a SQL query that|"
    "Explain what a {} is in programming|Write a JavaScript function to|How do I sort|Write an HTML page for|Write a regular expression that|"
    "Convert this to JSON:|Make a table of|Extract the names from this text:|Extract all dates from:|Classify these words:|Sort these items by|"
    "Is this review positive or negative?|Evaluate the following sentence:|Identify the main idea of:|Count the|Find the error in:|"
    # reasoning and role play
    "Imagine you are|Pretend to be|You are a teacher. Explain {}|You are a travel guide. Tell me about|You are a doctor.|Act as|Suppose that|"
    "Which is better, {} or {}|What would happen if|Give arguments for and against|Is it right to|What comes next in this sequence:|"
    "Read this and answer:|True or false:|Choose the correct answer:|Which word does not belong:|Solve this riddle:|If all|What can we conclude from|"
    "Discuss {}|Debate whether|Analyse|Give your opinion on {}|What do you think of {}|Tell me a joke about {}|Invent a game about {}|Name a few|"
    "Write a conversation about {}|Write instructions for|Write a short biography of|Hello|Hi, I|Please|I|The|My|What|How|Can|Give|In"
)

SUMMARISE = listed(
    "Summarize this text: {}|Summarize the following article:\n\n{}|{}\n\nSummarize the text above.|Give a short summary of this passage.\n\n{}|"
    "What are the key points of this text?\n\n{}|{}\n\nTL;DR:|Shorten this to two sentences: {}|Please sum up: {}|Summary of the following: {}|"
    "Rewrite this in your own words: {}|What is this text about? {}"
)
ASK_ABOUT = listed(
    "{}\n\nQuestion:|{}\n\nUsing the passage above, answer this:|Read the text and answer the question.\n\n{}\n\n|{}\n\nBased on this text,|"
    "Context: {}\nQuestion:|{}\n\nNow answer: what|Here are two notes.\n\n{}\n\n{}\n\nWhat|{}\n\n{}\n\nQuestion: who|{} {}\nQuestion: when|"
    "{}\n\n{}\n\nAnswer from the texts: why|{} {} {}\n\nQ: what|{}\n\n{}\n\n{}\n\nQuestion: how"
)

ARTICLES = listed(
    "Write a news article about {}.|Write an encyclopedia article about {}.|Write a long paragraph about {}.|Write a report on an accident with {}.|"
    "Write a biography of somebody known for {}.|Tell the history of {}.|Write a magazine story about {} and {}.|Report on a court case about {}.|"
    "Write a newspaper story about a town and {}.|Write a detailed text with dates, names and places about {}."
)


def opener(rng: random.Random) -> str:
    """The first words of a request, for the model to go on from; one in ten is empty, so that the model begins by itself."""
    if rng.random() < 0.1:
        return ""
    return filled(rng.choice(OPENERS), TOPICS, rng)


def passage_request(rng: random.Random) -> str:
    """A request for a passage that other requests can be about."""
    return filled(rng.choice(ARTICLES), TOPICS, rng)


def with_passages(passages: list[str], rng: random.Random) -> tuple[str, bool]:
    """A request about passages, and whether the model is to finish it (a question it asks itself)."""
    if rng.random() < 0.5:
        return filled(rng.choice(SUMMARISE), passages, rng), False
    return filled(rng.choice(ASK_ABOUT), passages, rng), True


def filled(pattern: str, words: list[str], rng: random.Random) -> str:
    """``{}`` in a pattern replaced by words drawn without repetition."""
    parts = pattern.split("{}")
    return parts[0] + "".join(word + part for word, part in zip(rng.sample(words, len(parts) - 1), parts[1:], strict=True))
