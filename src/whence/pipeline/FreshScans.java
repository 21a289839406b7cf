// The rule that pipeline/fresh_scans.py adds to Spark's optimizer; its head tells why. Written for Janino, which knows
// no generics and no lambdas.
package whence;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.catalyst.expressions.And;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.plans.logical.Filter;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.SupportsPushDownFilters;
import org.apache.spark.sql.execution.datasources.DataSourceStrategy$;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2ScanRelation;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.python.PythonTable;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import scala.Function1;
import scala.Option;
import scala.runtime.AbstractPartialFunction;

/** Gives each scan of the source a source of its own, and pushes the filters above the scan into that one. */
public class FreshScans extends Rule {
    static final String NAME = "whence";
    static final String OPTION = "pushdown";

    public TreeNode apply(TreeNode plan) {
        return plan.transformDown(new Refresh());
    }

    public static class Refresh extends AbstractPartialFunction {
        public boolean isDefinedAt(Object node) {
            return isShared(node) || node instanceof Filter && isShared(((Filter) node).child());
        }

        public Object applyOrElse(Object node, Function1 otherwise) {
            if (!isDefinedAt(node)) {
                return otherwise.apply(node);
            }
            List conjuncts = new ArrayList();
            Object scan = node;
            if (node instanceof Filter) {
                split(((Filter) node).condition(), conjuncts);
                scan = ((Filter) node).child();
            }
            return refreshed((DataSourceV2ScanRelation) scan, conjuncts);
        }

        /** A scan that was planned together with others: the rule has not seen it yet. */
        static boolean isShared(Object node) {
            if (!(node instanceof DataSourceV2ScanRelation)) {
                return false;
            }
            DataSourceV2Relation relation = ((DataSourceV2ScanRelation) node).relation();
            Table table = relation.table();
            String asked = (String) relation.options().get(OPTION);
            return table instanceof PythonTable && NAME.equals(table.name())
                && (asked == null || "auto".equalsIgnoreCase(asked));
        }

        static void split(Expression condition, List conjuncts) {
            if (condition instanceof And) {
                split(((And) condition).left(), conjuncts);
                split(((And) condition).right(), conjuncts);
            } else {
                conjuncts.add(condition);
            }
        }

        static LogicalPlan refreshed(DataSourceV2ScanRelation scan, List conjuncts) {
            DataSourceV2Relation relation = scan.relation();
            Map own = new HashMap(relation.options().asCaseSensitiveMap());
            own.put(OPTION, "always");
            CaseInsensitiveStringMap options = new CaseInsensitiveStringMap(own);
            PythonDataSourceV2 source = new PythonDataSourceV2();
            source.setShortName(NAME);
            Table table = source.getTable(((PythonTable) relation.table()).schema(), new Transform[0], own);
            ScanBuilder builder = ((SupportsRead) table).newScanBuilder(options);
            List kept = push(builder, conjuncts);
            Scan fresh = builder.build();
            Object relationParts[] = parts(relation);
            relationParts[0] = table;
            replace(relationParts, relation.options(), options);
            Object scanParts[] = parts(scan);
            replace(scanParts, scan.scan(), fresh);
            replace(scanParts, relation, relation.makeCopy(relationParts));
            LogicalPlan plan = (LogicalPlan) scan.makeCopy(scanParts);
            Expression condition = null;
            for (int i = 0; i < kept.size(); i++) {
                Expression next = (Expression) kept.get(i);
                condition = condition == null ? next : (Expression) new And(condition, next);
            }
            return condition == null ? plan : (LogicalPlan) new Filter(condition, plan);
        }

        /** What the source leaves to Spark. */
        static List push(ScanBuilder builder, List conjuncts) {
            List kept = new ArrayList();
            List translated = new ArrayList();
            List filters = new ArrayList();
            for (int i = 0; i < conjuncts.size(); i++) {
                Expression conjunct = (Expression) conjuncts.get(i);
                Option filter = DataSourceStrategy$.MODULE$.translateFilter(conjunct, false);
                if (filter.isDefined()) {
                    translated.add(conjunct);
                    filters.add(filter.get());
                } else {
                    kept.add(conjunct);
                }
            }
            if (filters.isEmpty()) {
                return kept;
            }
            org.apache.spark.sql.sources.Filter given[] = new org.apache.spark.sql.sources.Filter[filters.size()];
            for (int i = 0; i < given.length; i++) {
                given[i] = (org.apache.spark.sql.sources.Filter) filters.get(i);
            }
            org.apache.spark.sql.sources.Filter back[] = ((SupportsPushDownFilters) builder).pushFilters(given);
            for (int i = 0; i < given.length; i++) {
                for (int j = 0; j < back.length; j++) {
                    if (back[j].equals(given[i])) {
                        kept.add(translated.get(i));
                        break;
                    }
                }
            }
            return kept;
        }

        static Object[] parts(TreeNode node) {
            Object parts[] = new Object[node.productArity()];
            for (int i = 0; i < parts.length; i++) {
                parts[i] = node.productElement(i);
            }
            return parts;
        }

        static void replace(Object parts[], Object old, Object other) {
            for (int i = 0; i < parts.length; i++) {
                if (parts[i] == old) {
                    parts[i] = other;
                }
            }
        }
    }
}
