module delete_node_binary_search_tree #(
    parameter DATA_WIDTH = 16,
    parameter ARRAY_SIZE = 5
) (
    input  logic                                       clk,
    input  logic                                       reset,
    input  logic                                       start,
    input  logic [DATA_WIDTH-1:0]                      delete_key,
    input  logic [$clog2(ARRAY_SIZE):0]                root,
    input  logic [ARRAY_SIZE*DATA_WIDTH-1:0]           keys,
    input  logic [ARRAY_SIZE*($clog2(ARRAY_SIZE)+1)-1:0] left_child,
    input  logic [ARRAY_SIZE*($clog2(ARRAY_SIZE)+1)-1:0] right_child,
    output logic [$clog2(ARRAY_SIZE):0]                key_position,
    output logic                                       complete_deletion,
    output logic                                       delete_invalid,
    output logic [ARRAY_SIZE*DATA_WIDTH-1:0]           modified_keys,
    output logic [ARRAY_SIZE*($clog2(ARRAY_SIZE)+1)-1:0] modified_left_child,
    output logic [ARRAY_SIZE*($clog2(ARRAY_SIZE)+1)-1:0] modified_right_child
);
    localparam PTR = $clog2(ARRAY_SIZE) + 1;
    localparam [PTR-1:0] NIL = '1;
    localparam [DATA_WIDTH-1:0] NO_KEY = '1;
    localparam L = 0, R = 1;

    localparam [2:0] S_IDLE = 0, S_INIT = 1, S_SEARCH_LEFT = 2, S_SEARCH_LEFT_RIGHT = 3, S_DELETE = 4,
                     S_DELETE_COMPLETE = 5, S_FIND_INORDER_SUCCESSOR = 6;

    logic [2:0]                             state;
    logic [ARRAY_SIZE-1:0][DATA_WIDTH-1:0]  new_key;
    logic [ARRAY_SIZE-1:0][PTR-1:0]         new_left, new_right;

    // The walks through the subtrees left and right of the root, in the order of the keys.
    logic [PTR-1:0] stack [0:1][0:ARRAY_SIZE-1];
    logic [PTR-1:0] here [0:1], height [0:1], passed [0:1], top [0:1];
    logic [1:0]     walking, over, matching;

    logic [PTR-1:0] node, position, successor, vacated;
    logic           found, leftmost;

    function automatic [DATA_WIDTH-1:0] key(input [PTR-1:0] n);
        key = keys[n*DATA_WIDTH+:DATA_WIDTH];
    endfunction

    // A child whose key is invalid is none, whatever points at it.
    function automatic [PTR-1:0] left(input [PTR-1:0] n);
        left = left_child[n*PTR+:PTR];
        if (left != NIL && key(left) == NO_KEY) left = NIL;
    endfunction

    function automatic [PTR-1:0] right(input [PTR-1:0] n);
        right = right_child[n*PTR+:PTR];
        if (right != NIL && key(right) == NO_KEY) right = NIL;
    endfunction

    assign modified_keys        = new_key;
    assign modified_left_child  = new_left;
    assign modified_right_child = new_right;

    always_comb begin
        walking[L] = (state == S_SEARCH_LEFT || state == S_SEARCH_LEFT_RIGHT) && !over[L];
        walking[R] = state == S_SEARCH_LEFT_RIGHT && !over[R] && !found;
        for (int s = 0; s < 2; s++) begin
            top[s] = stack[s][height[s]-1'b1];
            matching[s] = walking[s] && here[s] == NIL && height[s] != 0 && key(top[s]) == delete_key;
        end
    end

    always_ff @(posedge clk or posedge reset)
        if (reset) begin
            state <= S_IDLE;
            {complete_deletion, delete_invalid, found, leftmost, over} <= '0;
            {key_position, new_key, new_left, new_right} <= '1;
        end else begin
            for (int s = 0; s < 2; s++)
                if (walking[s]) begin
                    if (here[s] != NIL) begin
                        stack[s][height[s]] <= here[s];
                        height[s] <= height[s] + 1'b1;
                        here[s] <= left(here[s]);
                    end else if (height[s] != 0) begin
                        height[s] <= height[s] - 1'b1;
                        passed[s] <= passed[s] + 1'b1;
                        here[s] <= right(top[s]);
                    end else over[s] <= 1'b1;
                end

            case (state)
                S_IDLE: begin
                    {complete_deletion, delete_invalid, found, leftmost, over} <= '0;
                    {key_position, new_key, new_left, new_right} <= '1;
                    for (int s = 0; s < 2; s++) begin
                        height[s] <= '0;
                        passed[s] <= '0;
                    end
                    if (start) state <= S_INIT;
                end

                S_INIT: begin
                    node <= root;
                    position <= '0;
                    if (root == NIL) state <= S_DELETE_COMPLETE;
                    else begin
                        here[L] <= left(root);
                        here[R] <= right(root);
                        found <= key(root) == delete_key;
                        if (key(root) < delete_key) state <= S_SEARCH_LEFT_RIGHT;
                        else if (key(root) == delete_key && left(root) == NIL) state <= S_DELETE;
                        else state <= S_SEARCH_LEFT;
                    end
                end

                // Either the key is in here, or it is the root's and its position the number of smaller ones.
                S_SEARCH_LEFT: begin
                    position <= passed[L];
                    if (matching[L]) begin
                        found <= 1'b1;
                        node <= top[L];
                        state <= S_DELETE;
                    end else if (here[L] == NIL && height[L] == 0) state <= found ? S_DELETE : S_DELETE_COMPLETE;
                end

                // The position of a key in here is known when all keys left of the root have been counted.
                S_SEARCH_LEFT_RIGHT: begin
                    position <= passed[L] + passed[R];
                    if (matching[R]) begin
                        found <= 1'b1;
                        node <= top[R];
                    end
                    if (over[L] && (found || over[R])) state <= found ? S_DELETE : S_DELETE_COMPLETE;
                end

                S_DELETE: begin
                    new_key <= keys;
                    new_left <= left_child;
                    new_right <= right_child;
                    successor <= right(node);
                    state <= S_DELETE_COMPLETE;
                    if (left(node) != NIL && right(node) != NIL) state <= S_FIND_INORDER_SUCCESSOR;
                    else if (left(node) != NIL) begin
                        new_key[node] <= key(left(node));
                        new_left[node] <= left(left(node));
                        new_right[node] <= right(left(node));
                        vacated <= left(node);
                    end else if (right(node) != NIL) begin
                        new_key[node] <= key(right(node));
                        new_left[node] <= left(right(node));
                        new_right[node] <= right(right(node));
                        vacated <= right(node);
                    end else vacated <= node;
                end

                S_FIND_INORDER_SUCCESSOR:
                    if (!leftmost) begin
                        if (left(successor) == NIL) leftmost <= 1'b1;
                        else successor <= left(successor);
                    end else begin
                        new_key[node] <= key(successor);
                        vacated <= successor;
                        if (right(successor) != NIL) begin
                            new_key[successor] <= key(right(successor));
                            new_left[successor] <= left(right(successor));
                            new_right[successor] <= right(right(successor));
                            vacated <= right(successor);
                        end
                        state <= S_DELETE_COMPLETE;
                    end

                S_DELETE_COMPLETE: begin
                    complete_deletion <= found;
                    delete_invalid <= !found;
                    if (found) begin
                        key_position <= position;
                        for (int i = 0; i < ARRAY_SIZE; i++) begin
                            if (i == vacated) new_key[i] <= NO_KEY;
                            if (i == vacated || new_left[i] == vacated) new_left[i] <= NIL;
                            if (i == vacated || new_right[i] == vacated) new_right[i] <= NIL;
                        end
                    end
                    state <= S_IDLE;
                end

                default: state <= S_IDLE;
            endcase
        end
endmodule
